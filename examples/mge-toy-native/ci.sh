#!/bin/sh
# What a CI job runs, in a clean environment: install, check, prove. The wheel is in dist/.
set -eu
cd "$(dirname "$0")"
python -m pip install "mge-core[testing]>=0.1,<0.2"
rm -rf dist
python -m pip wheel --no-deps --wheel-dir dist .
python -m pip install --no-deps --force-reinstall dist/*.whl
python -m mge plugins check toy_native
python -m pytest -q
