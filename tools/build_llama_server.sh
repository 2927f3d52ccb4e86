#!/bin/sh
# Builds the llama-server that benchmarks compare with: from the sources that the installed llama-cpp-python was built
# from, for this processor. Prebuilt ones (xllamacpp's wheel, releases) are for any x86-64 and slower than what they
# would be measured against.
#
#     tools/build_llama_server.sh FOLDER      # FOLDER/llama-server; needs cmake, a C++ compiler, 1 GB and a while
#     JOBS=8 tools/build_llama_server.sh ~/llama
#
# The version is the one that pyproject.toml pins; pip fetches its source package from PyPI.
set -eu

[ $# -eq 1 ] || { echo "usage: tools/build_llama_server.sh FOLDER" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${PYTHON:-$root/.venv/bin/python}
package=$(sed -n 's/^ *"\(llama-cpp-python==[^"]*\)",$/\1/p' "$root/pyproject.toml")

cd "$folder"
if ! ls llama_cpp_python-*.tar.gz >/dev/null 2>&1; then
    "$python" -m pip download --no-deps --no-binary llama-cpp-python --dest . "$package"
fi
if [ ! -d source ]; then
    rm -rf unpacked && mkdir unpacked
    tar xzf llama_cpp_python-*.tar.gz -C unpacked --strip-components 1
    mv unpacked source
fi
# As llama-cpp-python builds it: Release, native flags, OpenMP. No page to look at, no downloads: neither is measured.
cmake -S source/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
nice -n 19 cmake --build build --target llama-server --parallel "${JOBS:-1}"
cp build/bin/llama-server llama-server
./llama-server --version
