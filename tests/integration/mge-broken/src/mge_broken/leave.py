"""A module that ends its process."""

import sys

sys.exit("no licence")
