# Two commands are for everybody: `make demo` and `make test`. Each builds .venv from nothing but python3 and is quick after that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick lint audit bench soak clean
.DEFAULT_GOAL := demo

# pip says nothing for most of a minute, so a line every few seconds says that it is at work. The sleep holds no output open.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "Building $(VENV). This happens once and takes a minute or two."
	@seconds=0; while sleep 3 >/dev/null 2>&1; do seconds=$$((seconds + 3)); echo "  installing, $$seconds s"; done & \
	beat=$$!; trap 'kill $$beat' EXIT; trap 'exit 130' INT TERM; \
	{ test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); } && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/eigenveil demo

# Tests start some fifty processes: compiled once, all of this loads in half the time, also where the environment says not to.
# Each worker begins at a place of its own and takes over what others have not got to, so that fixtures of a file are made once.
# Three of them for two cores, because tests of networks and of processes wait: `make test WORKERS=2` for one on each.
WORKERS ?= 3
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=10 --durations-min=5
# The last line says how long all of it took, and on what, whether it passed or not.
TEST = @began=$$(date +%s); $(PYTEST)$(1); code=$$?; took=$$(($$(date +%s) - began)); \
	echo "make $@: $$((took / 60)) min $$((took % 60)) s, with $(WORKERS) workers on $$(getconf _NPROCESSORS_ONLN) cores"; exit $$code

test: $(READY)
	$(call TEST)

quick: $(READY)
	$(call TEST, -m 'not slow')

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(READY)
	$(BIN)/eigenveil audit --quick --all --seed 1

bench: $(READY)
	$(BIN)/python benchmarks/utility.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/exact_noise.py
	for name in cluster pool; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	for name in speed accuracy memory permutation privacy; do $(BIN)/python benchmarks/streaming/$$name.py || exit 1; done
	$(BIN)/python benchmarks/streaming/merge_cost.py
	for name in streaming/device_memory fpca_system streaming/fpca_private; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	for name in rounds overhead many_sites privacy; do $(BIN)/python benchmarks/federated/$$name.py || exit 1; done
	for name in cost table1 accuracy; do $(BIN)/python benchmarks/masked/$$name.py || exit 1; done
	for name in figure2 figure3 convergence; do $(BIN)/python benchmarks/gossip/$$name.py || exit 1; done
	for name in table2 figures figure2 quality speed; do $(BIN)/python benchmarks/recommend/$$name.py || exit 1; done
	for name in round study kills flood; do $(BIN)/python benchmarks/network/$$name.py || exit 1; done
	$(BIN)/python benchmarks/audit_attacks.py
	$(BIN)/python benchmarks/bounds/quantiles.py
	for name in clip_level bounds/private_units bounds/unknown_tables missing; do $(BIN)/python benchmarks/$$name.py || exit 1; done
	for name in truth grid; do $(BIN)/python benchmarks/plan/$$name.py || exit 1; done

# Thirty sites as processes, killed and started again, twice: below ten minutes on two quiet cores, and stopped there.
soak: $(READY)
	timeout 600 $(BIN)/python benchmarks/soak.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
