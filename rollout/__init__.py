"""Leads agents into a running cluster, from release to release, and out again: broker by broker, and nothing by itself.

`facts` what is looked at, `gathering` how it is got, `listeners` the lines of server.properties, `steps` what is to be
done in which order, `judgement` whether now is the time for it. All but `gathering` are pure.
"""
