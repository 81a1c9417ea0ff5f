"""What followers fetch, by object storage: `leader` makes links, `follower` hydrates them, both share `wire` alone."""
