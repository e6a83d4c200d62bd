# Every target prepares what it needs; nothing has to be installed first but Python 3.11+.
# The three packages are installed from packages/ in editable mode, into one virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
SITE := build/venv-docs/.ready
CODE := packages tests examples benchmarks hack conftest.py
PACKAGES := $(foreach name,kubeloop kubeloop-kinds devkube elasti,--editable packages/$(name))
# Tests wait about as much as they work, so there are two workers more than there are cores; one more where each
# has a control plane of its own. Each begins with a part of the suite as a whole, so that what a module shares
# is made once, and then takes from others. Give your own to change that:
# make test PYTEST_ARGS='-x packages/kubeloop/tests'
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS = $(shell expr $(CORES) + 1)
test: WORKERS = $(shell expr $(CORES) + 2)
PYTEST_ARGS ?= --numprocesses=$(WORKERS) --dist=worksteal
# End-to-end tests mostly wait; tests/e2e/conftest.py shares them out.
# A worker for each core: what is measured there are seconds, and more of them would wait for each other.
E2E_ARGS ?= --numprocesses=$(CORES) --verbose
# What runs pytest in `make test` and `make conformance`: CI has .ci/retry here.
RETRY ?=
# Every worker and every program that a test starts imports the same modules: compile them once.
unexport PYTHONDONTWRITEBYTECODE

SOAK_SECONDS ?= 120
FUZZ_SECONDS ?= 600
DEPTH ?= 6
SEEDS ?= 50

.DEFAULT_GOAL := help
PYTHONS ?= python3.12 python3.13 python3.14

.PHONY: help demo test properties model swarm mutants mutation reword replay conformance e2e browser fuzz soak test-pythons check lint types layers generate docs format spec image \
	bench bench-quick controlplane charttools chart chart-docs dist dist-try release-try version workflows realcluster realcluster-test lock clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | sed 's/:.*## /\t/' | expand -t 18

# What the programs need to run is enough for the demo, and is there in a third of the time.
$(RUNS): packages/kubeloop/pyproject.toml packages/devkube/pyproject.toml packages/elasti/pyproject.toml requirements-demo.lock
	@echo "Once: what it needs is installed into $(VENV)."
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-demo.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation $(PACKAGES)
	@touch $@

$(READY): $(RUNS) requirements-dev.lock
	$(BIN)/pip install --quiet --require-hashes --requirement requirements-dev.lock
	@touch $@

demo: $(RUNS) ## Show the whole loop on a dev cluster: asleep, woken by requests, awake, asleep again
	$(BIN)/elasti demo

test: $(READY) ## Run the tests of the three packages, the docs and the examples
	$(BIN)/python hack/compile_tests.py
	$(RETRY) $(BIN)/pytest --ignore=tests/conformance --ignore=tests/e2e --ignore=tests/chart --ignore=tests/browser \
		-m 'not controlplane and not realcluster and not distribution' $(PYTEST_ARGS)

properties: $(READY) ## Run every property test with fresh examples, a thousand each; for a nightly job
	$(BIN)/pytest --hypothesis-profile=thorough --hypothesis-show-statistics -m 'not controlplane' $(PYTEST_ARGS) \
		$$(grep --recursive --files-with-matches --include='test_*.py' '^from hypothesis' packages tests)

conformance: $(READY) ## Run one suite on devkube and on a real control plane, and all tests that need the latter
	$(RETRY) $(BIN)/pytest tests/conformance $(PYTEST_ARGS)
	$(RETRY) $(BIN)/pytest packages tests/controlplane tests/docs -m controlplane $(PYTEST_ARGS)

e2e: $(READY) ## Run operator and resolver end to end; build/e2e/report.md accounts for each request
	$(BIN)/pytest tests/e2e $(E2E_ARGS)

model: $(READY) ## Search every order of DEPTH (6) events around the hand-over, from every point of a cycle
	$(BIN)/python -m tests.model.search --depth $(DEPTH) --faults 2

swarm: $(READY) ## Play SEEDS (50) whole systems in memory, every order by seed; SEED=n plays one again
	$(BIN)/python -m tests.swarm $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) $(SWARM_ARGS))

mutants: $(READY) ## Put known bugs back one by one, and see whether the model or 500 seeds of the swarm find each
	$(BIN)/python -m tests.swarm.mutants $(MUTANTS_ARGS)

mutation: $(READY) ## Change one thing at a time in the pure decisions; a test must notice each. For a nightly job
	$(BIN)/python hack/mutation $(MUTATION_ARGS)

reword: $(READY) ## Alter every sentence that the operator writes; tests that compare prose fail. For a nightly job
	$(BIN)/python hack/reword.py $(PYTEST_ARGS) $(REWORD_ARGS)

replay: $(READY) ## Show lost request CASE=n of docs/track-record.md again, on the commit before its fix
	$(BIN)/python hack/replay $(CASE)

browser: $(READY) docs ## Run the browser tests in Chromium, on the site too; screenshots are in build/browser
	$(BIN)/pip install --quiet --require-hashes --requirement tests/browser/requirements.lock
	$(RETRY) $(BIN)/pytest tests/browser $(BROWSER_ARGS)

fuzz: $(READY) ## Fuzz the parsers for FUZZ_SECONDS (600) in total; FUZZ_SEED repeats a run
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest tests/fuzz -rA -q

soak: $(READY) ## Load the resolver with every protocol for two minutes, and look for leaks
	$(BIN)/python -m benchmarks.resolver_soak --seconds $(SOAK_SECONDS)

test-pythons: ## Run the suite on every newer Python that is installed
	@for python in $(PYTHONS); do $$python -c "" 2>/dev/null || continue; \
		$(MAKE) test PYTHON=$$python VENV=build/venv-$$python || exit 1; done

# The parts are what .pre-commit-config.yaml calls.
check: lint types layers workflows ## Check format, lint, types, import contracts, generated files and workflows

lint: $(READY) ## Check format and lint (ruff)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(READY) ## Check types (mypy --strict)
	$(BIN)/mypy

layers: $(READY) ## Check the import contracts (.importlinter) and that generated files are current
	$(BIN)/lint-imports --no-cache
	$(BIN)/python hack/import_cycles.py
	$(BIN)/python hack/conformance_table.py --check
	$(BIN)/python hack/reference.py --check
	$(BIN)/python hack/derive_kinds.py --check

generate: $(READY) ## Regenerate the generated pages of docs/ and the kinds of kubeloop-kinds
	$(BIN)/python hack/conformance_table.py
	$(BIN)/python hack/reference.py
	$(BIN)/python hack/derive_kinds.py

# Its tools are in an environment of their own: they are not needed to work on the code.
$(SITE): requirements-docs.lock
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --require-hashes --requirement requirements-docs.lock
	@touch $@

docs: $(SITE) ## Build the site in build/site; fails on dead links and on external resources
	$(<D)/bin/python hack/site.py

format: $(READY) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

spec: $(READY) ## List the numbered behaviours of docs/spec.md with their tests
	$(BIN)/python hack/spec_coverage.py

controlplane: ## Build etcd and the Kubernetes control plane once, into a cache (needs Go)
	hack/controlplane/build

charttools: ## Build Helm, the chart's tools and actionlint once, into a cache (needs Go)
	hack/charttools/build

.PHONY: neighbours neighbours-test
neighbours: ## Build the neighbours that Elasti is tried with once, into a cache (needs Go)
	hack/neighbours/build

neighbours-test: $(READY) neighbours ## Try Elasti with its neighbours' own programs; build/neighbours/report.json has the rows
	$(BIN)/pip install --quiet --require-hashes --requirement tests/neighbours/requirements.lock
	$(BIN)/pytest tests/neighbours $(NEIGHBOURS_ARGS)

chart: $(READY) charttools ## Test the Helm chart: against `elasti manifests`, the API server and promtool
	$(BIN)/pytest tests/chart $(PYTEST_ARGS)

chart-docs: charttools ## Regenerate the chart's README and CRD
	$$(hack/charttools/build --where)/helm-docs --chart-search-root=charts/elasti --log-level=error
	$(BIN)/elasti crd > charts/elasti/files/crd.yaml

realcluster: $(READY) ## Build real nodes' programs and images once, into a cache; COMPONENTS=all: more
	hack/realcluster/cluster build $(COMPONENTS)

realcluster-test: COMPONENTS = all
realcluster-test: realcluster ## Run our image on two real nodes; build/realcluster/report.md has the figures
	$(BIN)/pytest tests/realcluster $(REALCLUSTER_ARGS)

image: $(READY) ## Run the Dockerfile's steps without a container engine, and try the result
	$(BIN)/python hack/image/check

dist: $(READY) charttools ## Build a release's files: wheels, sdists, chart, image context, notes, SBOM, checksums; reproducible
	$(BIN)/python hack/dist.py build

dist-try: $(READY) charttools ## Build them twice and compare; install the wheels into an empty environment, run the demo
	$(BIN)/python hack/dist.py try
	$(BIN)/pytest packages/kubeloop/tests/test_distribution.py

release-try: $(READY) charttools ## Play the release workflow's steps here, up to what only a forge can do
	$(BIN)/python -m hack.release

version: $(READY) ## Write VERSION into elasti-operator, the chart and the reference
	$(BIN)/python hack/dist.py version
	$(BIN)/python hack/reference.py

workflows: ## Lint the GitHub workflows (actionlint), if the tool is built
	@actionlint=$$(hack/charttools/build --where)/actionlint; if test -x $$actionlint; then $$actionlint; \
		else echo 'no actionlint: make charttools builds it'; fi

bench: $(READY) ## Run the benchmarks: a table, and build/bench.json
	$(BIN)/pip install --quiet --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks

bench-quick: $(READY) ## Compare a few ratios with benchmarks/baseline.json, two minutes; fails if one is worse by a quarter
	$(BIN)/pip install --quiet "$$(grep ^kubernetes== benchmarks/requirements.txt)"
	$(BIN)/python -m benchmarks.ratios

numbers: $(READY) ## Compare kubeloop with other libraries on the same streams, ten minutes; writes docs/kubeloop/numbers.md
	$(PYTHON) -m venv build/bench-venv
	build/bench-venv/bin/pip install --quiet --requirement benchmarks/requirements.txt
	PYTHONPATH=packages/kubeloop/src build/bench-venv/bin/python -m benchmarks.compare --write

# The three packages are on no index yet: their own wheels say what each needs of the others. A lock has the hashes
# of every file of a version, so it fits every platform and Python. UPGRADE= keeps the versions.
UPGRADE ?= --upgrade
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url \
	--no-emit-find-links --find-links build/wheels --no-emit-package kubeloop --no-emit-package devkube
lock: $(READY) ## Pin all dependencies by hash: development, demo, image, build, site, browser, neighbours
	$(BIN)/pip install --quiet uv
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels packages/kubeloop packages/devkube
	$(COMPILE) --group dev $(UPGRADE) --output-file requirements-dev.lock \
		packages/kubeloop/pyproject.toml packages/devkube/pyproject.toml packages/elasti/pyproject.toml
	$(COMPILE) --constraint requirements-dev.lock --output-file requirements.lock \
		packages/kubeloop/pyproject.toml packages/elasti/pyproject.toml
	echo hatchling | $(COMPILE) --constraint requirements-dev.lock --output-file requirements-build.lock -
	printf 'editables\nhatchling\n' | $(COMPILE) --constraint requirements-dev.lock --output-file requirements-demo.lock \
		packages/kubeloop/pyproject.toml packages/devkube/pyproject.toml packages/elasti/pyproject.toml -
	$(COMPILE) --group docs $(UPGRADE) --output-file requirements-docs.lock
	$(COMPILE) --output-file tests/browser/requirements.lock tests/browser/requirements.txt
	$(COMPILE) --output-file tests/neighbours/requirements.lock tests/neighbours/requirements.txt

clean: ## Remove what the targets created
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
