#!/bin/sh
# run.sh SOURCE BUILD [test_FILE|lab] [--device cuda]: the tests of the Python package, those of one file, or those of lab/, by whichever Python
# has NumPy and cffi; those of choir.torch where it has PyTorch, too, on the device. CHOIR_PYTHON names another interpreter. What a release of PyTorch
# lacks is not tested, and said: Debian 12's is 1.13, PyPI's has all.
set -eu
source=$1 build=$2 files='test_*' tests=$1/python/tests
shift 2
case ${1:-} in test_*) files=$1; shift ;; lab) tests=$source/lab/tests; shift ;; esac
python=${CHOIR_PYTHON:-/usr/bin/python3}
"$python" -c 'import cffi, numpy' 2>/dev/null || {
  echo "NOT TESTED: python3 with NumPy and cffi (Debian: python3-numpy, python3-cffi) is not installed"
  exit 77
}
export CHOIR_LIBRARY="$build/libchoir.so" CHOIR_PROGRAM="$build/choir" PYTHONPATH="$source/python" PYTHONDONTWRITEBYTECODE=1
[ "${1:-}" != --device ] || export CHOIR_TORCH_DEVICE="$2"
"$python" -c 'import torch' 2>/dev/null || echo "NOT TESTED: choir.torch: PyTorch (Debian: python3-torch) is not installed"
"$python" -c 'import scipy, statsmodels, matplotlib, jsonschema' 2>/dev/null || {
  echo "NOT TESTED: choir.study: python3-scipy, python3-statsmodels, python3-matplotlib or python3-jsonschema is not installed"
}
exec "$python" -m unittest discover -s "$tests" -p "$files.py"
