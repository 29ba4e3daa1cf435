#!/bin/sh
# llama.sh SOURCE BUILD: exported models in llama.cpp. PyPI has one that is built already, xllamacpp; it goes into an
# environment under BUILD, which stays there.
set -eu
source=$1 build=$2 python=$2/llama/bin/python
version=2026.10.11549
"$python" -c "import xllamacpp" 2>/dev/null || {
  { /usr/bin/python3 -m venv --system-site-packages "$build/llama" && "$python" -m pip -q install "xllamacpp==$version"; } 2>&1 || {
    echo "NOT TESTED: exported models in llama.cpp: xllamacpp $version of PyPI could not be installed"
    exit 77
  }
}
exec env CHOIR_LIBRARY="$build/libchoir.so" CHOIR_PROGRAM="$build/choir" PYTHONPATH="$source/python:$source/python/tests" \
  PYTHONDONTWRITEBYTECODE=1 "$python" -m unittest -v test_export.InLlama
