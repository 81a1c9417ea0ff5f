"""Finds settings that would lose or leak data: facts are gathered first, then pure functions judge them.

`facts` has the facts, `gathering` gets them, `*_checks` have one function per check, `diagnosis` runs all.
"""
