# Targets of the project; `make help` lists them. Everything runs from .venv, which `make setup`
# makes and which the others make when it is missing or older than pyproject.toml.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
RUN    ?= run
NODES  ?= 3
ENGINE ?= local
EXTRAS ?= audit
VERSITYGW ?= v1.8.0
PYTHONS ?= python3.12 python3.13 python3.14
VERSIONED = tests/client tests/core tests/links tests/node tests/store
# Where modules are compiled anew for each process, a fifth of what the tests of a group take is that.
unexport PYTHONDONTWRITEBYTECODE
PROTOS  = $(sort $(wildcard proto/dledger/wire/*.proto))

.PHONY: help extras setup up down status demo test test-long sim library audit-property table-kills object-server spark-kills mutants chaos fuzz flips judgement check format lint types verify-proto proto versions picture architecture audit audit-package testing bench wheel-check clean
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "needs Python 3.11 or newer; choose one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## make .venv with everything but Spark

up: setup        ## start a local group of NODES=3 in RUN=run
	$(BIN)/dledger group up --nodes $(NODES) --dir $(RUN)

down: setup      ## stop it
	$(BIN)/dledger group down --dir $(RUN)

status: setup    ## who leads, terms, indexes
	$(BIN)/dledger group status --dir $(RUN)

demo: setup      ## the standard library through a group whose leader is killed twice, and a consumer (KEEP=1: keep its data)
	$(BIN)/python -m chaos.demo $(if $(KEEP),--keep)

test: setup extras  ## every test but the long ones (EXTRAS= leaves out what needs Spark)
	$(BIN)/pytest -q -n 4 --dist loadgroup --no-loadscope-reorder

test-long: setup extras  ## all tests, those that make test leaves out too, with all of the cases that they draw
	DLEDGER_TEST_ALL=1 $(BIN)/pytest -q -n 3 --dist loadgroup --no-loadscope-reorder -m "long or not long"

sim: setup       ## the deterministic simulator, for a minute (SEED=0 SEEDS=100000 LIMIT=60)
	$(BIN)/dledger chaos sim --seed $(or $(SEED),0) --seeds $(or $(SEEDS),100000) --time-limit $(or $(LIMIT),60)

library: setup   ## the client library in the simulator, for a minute (SEED=0 SEEDS=100000 LIMIT=60)
	$(BIN)/dledger chaos library --seed $(or $(SEED),0) --seeds $(or $(SEEDS),100000) --time-limit $(or $(LIMIT),60)

audit-property: setup  ## any one change to a replica's files gets a verdict that it allows (DRAWS=300 of each kind)
	AUDIT_DRAWS=$(or $(DRAWS),300) $(BIN)/python -m pytest -q tests/audit/test_any_change.py -m "not spark"

table-kills: setup  ## exports into tables, killed at random: each message once (KILLS=60 SEED=1)
	@for format in delta iceberg; do \
	  $(BIN)/python -m tests.audit.table_kills --format $$format --kills $(or $(KILLS),60) --seed $(or $(SEED),1) || exit 1; done

object-server: setup  ## an object-store server for the tests, built by Go: versitygw, into .venv/bin
	GOBIN=$(CURDIR)/$(BIN) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)

spark-kills: setup extras  ## Spark's long tests: a cluster; streams to topics and tables while drivers and leaders are killed (DRIVERS=9 LEADERS=6 SECONDS=1500)
	DRIVERS=$(or $(DRIVERS),9) LEADERS=$(or $(LEADERS),6) SECONDS_AT_MOST=$(or $(SECONDS),1500) \
	  $(BIN)/python -m pytest -q -s -m spark tests/spark/test_kills.py tests/spark/test_table_and_back.py \
	  $(addprefix tests/audit/test_,cluster.py stream.py faults.py scope.py deletions.py) \
	  $(addprefix tests/audit/test_delivery,.py _starts.py _claims.py _growing.py _deletions.py)

mutants: setup   ## break each rule once and show which seed and check noticed (MUTANTS=names JOBS=1)
	$(BIN)/python -m chaos.mutants --jobs $(or $(JOBS),1) $(MUTANTS)

chaos: setup     ## faults on real processes (SCENARIO=everything SECONDS=90 NODES=… SEED=…)
	$(BIN)/dledger chaos run $(or $(SCENARIO),everything) --seconds $(or $(SECONDS),90) $(if $(filter-out file default,$(origin NODES)),--nodes $(NODES)) $(if $(SEED),--seed $(SEED))

fuzz: setup      ## strangers at every port of a group (REQUESTS=1000000 SECONDS=900 SEED=…)
	$(BIN)/dledger chaos fuzz --requests $(or $(REQUESTS),1000000) --seconds $(or $(SECONDS),900) $(if $(SEED),--seed $(SEED))

flips: setup     ## bits that flip in members' files: found, put right, never served (FLIPS=500 PAIRS=100 SEED=…)
	$(BIN)/dledger chaos flips --flips $(or $(FLIPS),500) --pairs $(or $(PAIRS),100) $(if $(SEED),--seed $(SEED))

judgement: setup ## changes to a member's directory: what is judged to start starts (DRAWS=2000)
	DRAWS=$(or $(DRAWS),2000) $(BIN)/pytest -q tests/starting

format: setup    ## rewrite the sources in the one layout
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup      ## layout and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup     ## mypy --strict, tests included
	$(BIN)/mypy dledger dledger_cli store broker chaos audit tests

proto: setup     ## generate the protobuf code into dledger/wire
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. $(PROTOS)

verify-proto: setup  ## the committed protobuf code is what proto/ generates
	@rm -rf .proto-check && mkdir .proto-check
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=.proto-check --pyi_out=.proto-check $(PROTOS)
	@for f in $$(cd .proto-check && find . -type f); do \
	  cmp -s .proto-check/$$f $$f || { echo "stale: $$f (run make proto)"; rm -rf .proto-check; exit 1; }; done
	@rm -rf .proto-check; echo "generated protobuf code is current"

versions:        ## client, driver and store on other Pythons (PYTHONS="python3.13 ...")
	@for python in $(PYTHONS); do \
	  command -v $$python >/dev/null || { echo "$$python: not here"; continue; }; \
	  $$python -m venv .versions/$$python && \
	  .versions/$$python/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' && \
	  echo "$$python:" && .versions/$$python/bin/pytest -q $(VERSIONED) || exit 1; done

picture: setup   ## draw the import pictures into docs/ from the test that holds them
	$(BIN)/python -m tests.test_architecture

architecture: setup  ## the import picture holds
	$(BIN)/pytest -q tests/test_architecture.py tests/test_one_replica.py

check: lint types verify-proto architecture test  ## all that a commit must pass

audit: setup $(if $(filter spark,$(ENGINE)),$(VENV)/.audit)  ## prove that the replicas of RUN=run agree (ENGINE=local or spark)
	$(BIN)/dledger audit replicas --dir $(RUN) --engine $(ENGINE)

$(VENV)/.audit: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --retries 2 --editable '.[dev,audit,delta,iceberg,s3]'
	@touch $@

extras: setup    # Spark, if it can be had: half a gigabyte, from a registry that may be out of reach
ifneq ($(strip $(EXTRAS)),)
	@$(MAKE) --no-print-directory $(VENV)/.audit || \
	  echo "the extra 'audit' could not be installed: the tests that need Spark are skipped" >&2
endif

wheel-check: setup  ## the wheel, installed outside of the tree, is what the README says
	$(BIN)/pytest -q -m "long or not long" tests/packaging

audit-package: setup  ## what Spark executors import, as build/audit.zip
	@mkdir -p build
	$(BIN)/dledger audit package build/audit.zip

testing: setup   ## how long a group for a test takes, beside a bare start of Python (ROUNDS=7)
	$(BIN)/python -m dledger.testing.figures $(or $(ROUNDS),7)

bench: setup     ## figures beside their yardsticks
	$(BIN)/dledger bench all

clean:           ## remove what the targets made, but for data
	rm -rf $(VENV) .versions .proto-check .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
