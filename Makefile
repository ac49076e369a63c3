# Every target sets up what it needs: python3, make and pip are enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo dates test coverage lint format test-slow test-interop sanitize chaos lab bench growth sparse scale quality quality-ours quality-peers translation models encoder clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "segue needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing (the first time takes a minute or two)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,viz,mt,onnx]"
	@touch $(READY)

demo: $(READY)  ## prepare, train, evaluate, generate and draw, on Python's own library (about 7 minutes)
	@$(BIN)/python examples/demo.py runs

dates: $(READY)  ## sequence to sequence without data: dates in seven languages (about 3 minutes)
	@$(BIN)/python examples/dates.py runs

lab: $(READY)  ## measure what the papers claim, in small versions: lab/index.html (under 10 minutes)
	@$(BIN)/segue lab all --quick -o lab

test: lint  ## lint, types and tests, as continuous integration runs them
	$(BIN)/pytest -n 2

coverage: $(READY)  ## which lines the tests run (a quarter longer than the tests alone)
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## put the code in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: $(READY)  ## the long suites
	SEGUE_EXAMPLES=2000 $(BIN)/pytest -n 2 tests/laws
	$(BIN)/pytest -n 2 -m slow

SANITIZERS := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g
sanitize: $(READY)  ## native code under the address and undefined-behaviour sanitizers (some minutes)
	SEGUE_NATIVE_FLAGS="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	$(BIN)/pytest -p no:cacheprovider tests/native

chaos: $(READY)  ## kill, fill, flip and forge on purpose; nothing may be lost (about 10 minutes; HOURS=2 for more)
	$(BIN)/python chaos/run.py $(if $(HOURS),--hours $(HOURS)) $(MORE)

.venv-interop/ready:
	@echo "making .venv-interop, with the libraries whose formats segue reads and writes (a minute or two)"
	@$(PYTHON) -m venv .venv-interop
	@.venv-interop/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,onnx]" ctranslate2==4.8.4 sentencepiece==0.2.2 transformers==5.22.2 onnxruntime==1.31.1 accelerate==1.15.0 lm_eval==0.4.13 datasets==5.2.0
	@touch $@

test-interop: .venv-interop/ready  ## imports and exports beside the libraries themselves (4 minutes)
	.venv-interop/bin/pytest -m interop tests/interop

PEERS := .venv-peers/bin
.venv-peers/ready:
	@echo "making .venv-peers, with the libraries that segue is measured against (a minute or two)"
	@$(PYTHON) -m venv .venv-peers
	@$(PEERS)/pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==1.26.4 transformers==4.35.2 x-transformers==2.31.10 linformer==0.2.3 pydantic onnx onnxruntime performer-pytorch==1.1.4 ctranslate2==4.8.4
	@$(PEERS)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

bench: $(READY) .venv-peers/ready  ## speed beside the peers (about 15 minutes; QUICK=--quick: 3)
	$(PEERS)/python bench/speed.py --segue $(BIN)/segue $(QUICK)
	$(PEERS)/python bench/sliding.py $(QUICK)
	$(BIN)/python bench/convolutions.py $(QUICK)
	$(PEERS)/python bench/attention_peers.py $(QUICK)
	$(PEERS)/python bench/embedding.py $(QUICK)
	$(PEERS)/python bench/translating.py $(QUICK)
	$(BIN)/python bench/translation_training.py $(QUICK)

growth: $(READY)  ## how cost grows with stream, memory, segment, lanes, width and text (some minutes)
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/attention_growth.py

sparse: $(READY)  ## time and memory of full, windowed and sparse attention from 1,024 to 8,192 tokens (some minutes)
	$(BIN)/python bench/sparse.py $(QUICK)

scale: $(READY)  ## speed and memory of 1, 2 and 4 ranks (some minutes; MORE=--large: the 277M preset too)
	$(BIN)/python bench/scale.py $(MORE)

quality: quality-ours quality-peers  ## bits per byte after 30 minutes, ours and the peers' (DATA=a folder with enwik8)

quality-ours: $(READY)
	$(BIN)/python bench/quality.py --data $(DATA) --only segue $(MORE)

quality-peers: .venv-peers/ready
	$(PEERS)/python bench/quality.py --data $(DATA) $(MORE)

translation: $(READY)  ## BLEU of translators and RNNs on your own pairs (DATA=a folder TEST="source target"; half an hour each)
	$(BIN)/python bench/translation.py --data $(DATA) --test $(TEST) $(MORE)

models: $(READY)  ## every language model side by side (DATA=a prepared corpus; hours, goes on where it was)
	$(BIN)/python bench/models.py --data $(DATA) $(MORE)

encoder: $(READY)  ## fine-tuned encoders beside baselines (DATA=tasks WEIGHTS=a BERT PRETRAINED=your own; an hour, goes on where it was)
	$(BIN)/python bench/encoder_tasks.py --data $(DATA) $(if $(WEIGHTS),--weights $(WEIGHTS)) $(if $(PRETRAINED),--pretrained $(PRETRAINED)) $(MORE)

clean:  ## remove the virtual environment and caches
	rm -rf .venv .venv-peers .venv-interop .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist
