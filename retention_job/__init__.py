"""The PySpark job: is everything retained that must be, is nothing kept that need not be, and what does it cost.

`sources` are read, `tables` put together what they say, `findings` judge it, `cost` prices it, `page` shows it. `run`
is the whole job, `spark` what it needs of Spark; `settings` come in, `schemas` are its tables, `errors` end it. Each
imports only what is below it; import-linter holds that.
"""
