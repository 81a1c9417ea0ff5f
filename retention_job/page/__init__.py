"""Makes and writes a report.

In the order in which data meets them:

- `summaries`, `report_data`: tables as few values
- `report`, `html_report`, `textfile`: for people and for monitoring
- `report_output`: committed as one
"""
