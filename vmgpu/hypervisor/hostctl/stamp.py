"""Which build this is; the zipapp holds another text of this module."""

BUILD = "source"
PYNVML = ""
