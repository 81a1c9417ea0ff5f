"""Finds settings that would lose or leak data: facts are gathered once, then judged by pure functions.

`facts` what is looked at, `gathering` how it is got, `*_checks` one function per check, `diagnosis` all of them.
"""
