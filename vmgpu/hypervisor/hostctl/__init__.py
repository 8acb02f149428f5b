"""The root of a GPU host in few verbs: one zipapp per host, one JSON line in, one out.

It runs on the host's own Python (3.9 and later) and imports nothing but the standard library and, if it can, `pynvml`.
"""
