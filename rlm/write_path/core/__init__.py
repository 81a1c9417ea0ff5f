"""The write path without IO: events and the time go in, actions come out."""
