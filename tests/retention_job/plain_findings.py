def plain_findings():
    pass
