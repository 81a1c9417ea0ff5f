"""What a metric says, as a scrape would find it."""

from prometheus_client.metrics import MetricWrapperBase

from plugin.hot_path.loop_metrics import LoopCount, LoopCounter


def metric_value(metric: MetricWrapperBase | LoopCounter | LoopCount) -> float:
    """Of a counter or gauge without labels, or with its labels given."""
    if isinstance(metric, LoopCount):
        return metric.value
    [family] = metric.collect()
    [sample] = [one for one in family.samples if not one.name.endswith("_created")]
    return sample.value
