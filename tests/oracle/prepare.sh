#!/bin/sh
# Makes what `run.py ask` needs under $1: a venv with a CPU torch, and the unpacked wheels of some SGLang releases.
# Their import needs neither GPU nor the compiled kernels. About 4 GB; `python3.11` and pip's usual index.
set -eu
dir=$1
versions=${2:-"0.5.9 0.5.10.post1 0.5.12.post1 0.5.16 0.5.20 0.5.23"}
mkdir -p "$dir/wheels" "$dir/sources"
${PYTHON:-python3.11} -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q torch==2.13.0
"$dir/venv/bin/pip" install -q numpy transformers==5.12.1 msgspec orjson psutil pybase64 pillow ipython aiohttp \
    pydantic fastapi openai partial_json_parser gguf sentencepiece dill apache-tvm-ffi requests tqdm einops pyzmq \
    uvloop uvicorn setproctitle jsonschema python-multipart soundfile packaging loguru click frozendict
"$dir/venv/bin/pip" install -q --no-deps xgrammar compressed_tensors triton torchvision==0.28.0
# torchvision is built for CUDA; beside a CPU torch its operators are missing, and nothing here calls them
: > "$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/_meta_registrations.py"
for v in $versions; do
    "$dir/venv/bin/pip" download -q --no-deps --python-version 3.12 --only-binary=:all: "sglang==$v" -d "$dir/wheels"
    mkdir -p "$dir/sources/$v"
    python3 -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    z.extractall(sys.argv[2], [n for n in z.namelist() if not n.endswith(".so") and "multimodal_gen" not in n])
' "$dir"/wheels/sglang-"$v"-*.whl "$dir/sources/$v"
done
echo "python tests/oracle/run.py ask --python $dir/venv/bin/python --sources $dir/sources"
