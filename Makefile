# Needs nothing but make and a Python of at least 3.12; everything else goes into .venv.

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := megatron,preprocess,sentences,ray,report,dev,docs
comma := ,
# Further words for pytest or the demo: make test ARGS="tests/patching -x"
ARGS :=
# The Python that .venv is made with; found by itself: make setup PYTHON=/path/to/python3.12
PYTHON :=

.DEFAULT_GOAL := help
.PHONY: help setup demo check quick test lint bench docs constraints

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv and install the project with everything it was tested with

demo: $(STAMP) ## the whole way on this machine: text, training, loss curve, resume (two minutes)
	@$(VENV_PYTHON) -m accel_bridge demo $(ARGS)

# Tests that run beside one another; three on two cores, since some wait: make test WORKERS=8
WORKERS := 3
# Tests start hundreds of Pythons, which must not each compile accel_bridge again.
PYTEST = PYTHONDONTWRITEBYTECODE= $(VENV_PYTHON) -m pytest -n $(WORKERS) --dist worksteal

# Side by side: mypy alone leaves a core idle.
check: $(STAMP) ## style, types, generated pages and the quick tests, without Megatron (90 seconds)
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(STAMP)
	@FEW_EXAMPLES=1 $(PYTEST) -m "not megatron and not emulated and not slow and not example and not conformance" $(ARGS)

test: $(STAMP) ## run all tests (ten minutes)
	@$(PYTEST) $(ARGS)

lint: $(STAMP) ## check style, formatting, types and generated pages
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) tools/typecheck.py
	@$(VENV_PYTHON) tools/generated_docs.py --check

# bench_preprocess.py is not among them: it wants a vocabulary and Megatron's source trees.
bench: $(STAMP) ## measure what patches and the device redirection cost a call
	@$(VENV_PYTHON) tests/conformance/benchmarks/bench_calls.py

# MEGATRON is a checkout with its tests/functional_tests: make megatron-recipes ARGS="--only bert/"
MEGATRON :=
.PHONY: megatron-recipes
megatron-recipes: $(STAMP) ## run the functional recipes of the checkout MEGATRON=PATH, made small
	@$(VENV_PYTHON) tests/conformance/megatron/recipes.py $(MEGATRON) $(ARGS)

.PHONY: megatron-commands
megatron-commands: $(STAMP) ## run a command for each model and tool of the checkout MEGATRON=PATH
	@$(VENV_PYTHON) tests/conformance/megatron/commands.py $(MEGATRON) $(ARGS)

# On GPUs: make megatron-four MEGATRON=PATH BACKEND=cuda ARGS="--gpus 4"
.PHONY: megatron-four
megatron-four: $(STAMP) ## train in the layouts that want four processes, and compare them with one
	@test -n "$(MEGATRON)" || { echo "name a Megatron-LM checkout: make megatron-four MEGATRON=PATH"; exit 2; }
	@$(VENV_PYTHON) tests/conformance/megatron/matrix.py $(MEGATRON) --four --backend $(BACKEND) $(ARGS)

# Megatron's own tests: make megatron-suite MEGATRON=PATH WORLD=1,8 BACKEND=cuda ARGS="--devices 8"
MEGATRON :=
WORLD := 1,2,4,8
BACKEND := cpu
SUITE_RESULTS := suite-results
SUITE := $(VENV_PYTHON) tests/conformance/suites/megatron_suite.py
.PHONY: megatron-suite
megatron-suite: $(STAMP) ## run Megatron's own unit tests under the bridge (MEGATRON=PATH WORLD=1,2,4,8)
	@test -n "$(MEGATRON)" || { echo "name a Megatron-LM checkout: make megatron-suite MEGATRON=PATH"; exit 2; }
	@mkdir -p $(SUITE_RESULTS)
	@for world in $(subst $(comma), ,$(WORLD)); do \
		$(SUITE) run $(MEGATRON) $(ARGS) --world $$world --backend $(BACKEND) \
			--json $(SUITE_RESULTS)/$(BACKEND)-$$world.json.gz || exit 1; \
	done
	@$(SUITE) report $(SUITE_RESULTS)/$(BACKEND)-*.json.gz

# Each tutorial starts several Pythons, so they run one after another.
.PHONY: examples
examples: $(STAMP) ## run every tutorial of docs/examples as it stands, in small (half an hour)
	@PYTHONDONTWRITEBYTECODE= $(VENV_PYTHON) -m pytest -n 0 -m "example or megatron" tests/examples $(ARGS)

.PHONY: conformance
conformance: $(STAMP) ## tests of the tests and of harnesses; every Triton kernel on every case, and compiled for GPUs (fifteen minutes)
	@$(PYTEST) -m conformance $(ARGS)
	@ACCEL_BRIDGE_BACKEND=cpu $(VENV_PYTHON) tests/cuda/interpreted.py --all
	@$(VENV_PYTHON) tests/cuda/compiled.py 80 90 120

.PHONY: clients
clients: $(STAMP) ## run frameworks above Megatron for a quarter of an hour, the longest unseen first (30 GB)
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt uv
	@$(VENV_PYTHON) tests/conformance/clients/job.py --minutes 15 $(ARGS); status=$$?; \
		$(VENV_PYTHON) tools/generated_docs.py && exit $$status

# MINDSPEED_LLM is a checkout, MEGATRON a Megatron-LM (0.12 for the data; `datasets` on PYTHONPATH).
.PHONY: mindspeed-data mindspeed-scripts mindspeed-delegation
mindspeed-data: $(STAMP) ## compare instruction data with MindSpeed-LLM's own tool, byte for byte
	@$(VENV_PYTHON) tests/conformance/mindspeed/mindspeed_data.py $(MINDSPEED_LLM) $(MEGATRON) $(ARGS)

mindspeed-scripts: $(STAMP) ## train MindSpeed-LLM's scripts, made small, on the CPU and emulated NPUs
	@$(VENV_PYTHON) tests/conformance/mindspeed/mindspeed_scripts.py $(MINDSPEED_LLM) $(MEGATRON) $(ARGS)

# MINDSPEED is a checkout for the Megatron 0.12 of MEGATRON_012; MEGATRON is what our kernels train.
mindspeed-delegation: $(STAMP) ## the real MindSpeed on emulated NPUs: taken over, required, beside us
	@$(VENV_PYTHON) tests/conformance/mindspeed/mindspeed_delegation.py $(MINDSPEED) $(MEGATRON_012) $(MEGATRON) $(ARGS)

# SOURCES holds checkouts, ENVIRONMENT has the projects: tests/conformance/strangers/README.md
.PHONY: strangers
strangers: $(STAMP) ## run other projects' tests on the CPU with and without the bridge
	@$(VENV_PYTHON) tests/conformance/strangers/run.py --environment $(ENVIRONMENT) \
		--sources $(SOURCES) $(ARGS)

# A sample of bad inputs, drawn by a seed: make hostile ARGS="--count 400 --seed 7 --kind outputs"
.PHONY: hostile
hostile: $(STAMP) ## try 400 bad inputs on every command, and 30,000 mutated files (half an hour)
	@$(VENV_PYTHON) tests/conformance/hostile/run.py $(ARGS)
	@MANY_EXAMPLES=10 $(PYTEST) tests/parity/test_hostile.py tests/preprocess/test_index_fuzz.py \
		tests/cli/test_fuzz.py

.PHONY: build
build: $(STAMP) ## make the wheel and the source distribution in dist/, and check them
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt build twine
	@rm -rf build dist
	@$(VENV_PYTHON) -m build
	@$(VENV_PYTHON) -m twine check --strict dist/*

.PHONY: release
release: $(STAMP) ## build what is published, check it, try it in a fresh environment, write a checklist
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt build twine
	@$(VENV_PYTHON) tools/release.py $(ARGS)

docs: $(STAMP) ## write the generated pages and tables again
	@$(VENV_PYTHON) tools/generated_docs.py

.PHONY: site serve
site: $(STAMP) ## make the documentation's site in build/site; any warning is an error, no network
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --strict --quiet $(ARGS)
	@echo "Open build/site/index.html"

serve: $(STAMP) ## show the documentation's site while pages are edited
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs serve --quiet $(ARGS) & \
		echo "Open http://127.0.0.1:8000"; wait

.PHONY: site-check
site-check: site ## read the site in a headless Chromium: widths, links, search, copying (two minutes)
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt selenium
	@$(VENV_PYTHON) tests/conformance/site/browser.py

# Versions stay as they are where the requirements still allow them; to raise one:
# make constraints ARGS="--upgrade-package rich". Does not need what is pinned to fit together.
constraints: ## write constraints.txt again, from pyproject.toml
	@sh tools/make_venv.sh $(VENV) $(PYTHON)
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt uv
	@UV_CUSTOM_COMPILE_COMMAND="make constraints" $(VENV_PYTHON) -m uv pip compile --quiet \
		--python-version 3.12 --python-platform x86_64-manylinux_2_28 \
		$(patsubst %,--extra %,$(subst $(comma), ,$(EXTRAS)) maintain) \
		$(ARGS) -o constraints.txt pyproject.toml

# Installs again when what should be installed has changed.
$(STAMP): pyproject.toml constraints.txt tools/make_venv.sh
	@sh tools/make_venv.sh $(VENV) $(PYTHON)
	@echo "Installing into $(VENV): about two minutes and 6 GB the first time"
	@$(VENV_PYTHON) -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@
