"""A library that is not there."""

import ctypes

ctypes.CDLL("libmge_broken_driver.so.5")
