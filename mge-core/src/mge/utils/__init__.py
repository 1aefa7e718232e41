"""Tools around the framework, one file each: import the one that you need.

In: nothing. Out: the package ``mge.utils``.
After ``interop``; nothing follows.
"""
