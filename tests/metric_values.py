"""What a metric says, as a scrape would find it."""

from prometheus_client.metrics import MetricWrapperBase


def metric_value(metric: MetricWrapperBase) -> float:
    """Of a counter or gauge without labels, or with its labels given."""
    [family] = metric.collect()
    [sample] = [one for one in family.samples if not one.name.endswith("_created")]
    return sample.value
