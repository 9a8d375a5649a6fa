# make            build the release binary
# make test       install what the tests need (apt-get), then run them all
# make chaos      random faults: SECONDS_PER_STORE=240, SEED=… to repeat an order, HISTORY=DIRECTORY for each lock's history
# make handoffs   many runs in turn, without faults: HANDOFFS=20000
# make storms     commands that are hard to end, ended in every way: SECONDS_PER_STORE=240, SEED=…
# make soak       locks that are held and used for long: MINUTES=12
#                 these four also for a single store: STORE=redis
# make simulate   simulate faults, one history per seed: SEEDS=20000 of them, FROM=1; SEED=… to repeat one and see its timeline
# make mutants    break the program on purpose, in one place after the other: do the tests notice?
# make fuzz       look for input that breaks a parser: SECONDS_PER_TARGET=60 (needs a C++ compiler)
# make check      formatting, lints, and whether the generated files are up to date
# make deny       check the licences, sources and versions of all dependencies (needs cargo-deny: cargo install cargo-deny)
# make generate   regenerate the manual pages from the command line's definition
# make demo       record docs/demo.svg anew (needs root, and redis-server)
# make bench      compare with the peers that are installed; writes benches/RESULTS.md
# make install    PREFIX=/usr/local, DESTDIR=; make uninstall removes the same files
# make deb        a package for Debian and Ubuntu; make rpm: for Fedora and related distributions; make dist: an archive, with SHA256SUMS

CARGO ?= cargo
INSTALL ?= install
PREFIX ?= /usr/local
DESTDIR ?=

bindir = $(PREFIX)/bin
mandir = $(PREFIX)/share/man
bashdir = $(PREFIX)/share/bash-completion/completions
zshdir = $(PREFIX)/share/zsh/site-functions
fishdir = $(PREFIX)/share/fish/vendor_completions.d
tmpfilesdir = $(PREFIX)/lib/tmpfiles.d

target = $(or $(CARGO_TARGET_DIR),target)
binary = $(target)/release/lockrun
sources = Cargo.toml Cargo.lock $(wildcard .cargo/*) $(shell find src -type f)

# Each subcommand has a manual page of its own.
pages = $(addprefix lockrun-,acquire renew release reserve status break doctor prune)

# What `lockrun generate WHAT` prints, and the file in which it is checked in.
generated = man:man/lockrun.1 $(foreach page,$(pages),$(page):man/$(page).1)

.PHONY: build test unit-tests check deny chaos storms handoffs soak simulate mutants fuzz check-generated generate demo bench install uninstall deb dist rpm clean
.DELETE_ON_ERROR:

build: $(binary)

$(binary): $(sources)
	$(CARGO) build --release --locked
	@touch $@

# The tests run the release binary, because timing is part of its promises. They themselves are not optimized, because
# compiling them would take longer than that saves.
tested = SUITE_LOCKRUN=$(abspath $(binary)) $(CARGO) test --locked

# Most tests wait most of the time, so a dozen at once keep a processor busy.
test: export RUST_TEST_THREADS ?= $(shell expr 12 '*' $$(nproc))
# The binary takes longest to build, on one processor: it goes first. The other one runs the unit tests, which need no
# binary.
test:
	scripts/install-test-deps
	$(MAKE) --no-print-directory -j2 $(binary) unit-tests
	$(tested) --test '*'

unit-tests:
	nice env $(tested) --no-run
	nice env $(tested) --bins

# One store after the other: the faults of one store load the machine enough.
chaos: export SECONDS_PER_STORE ?= 240
chaos: export RUST_TEST_THREADS ?= 1
chaos: $(binary)
	scripts/install-test-deps
	$(tested) --test suite -- --nocapture \
		chaos::whatever_happens::$(STORE) chaos::failovers::$(STORE) chaos::full_disks::$(STORE)

# Several at once: also a lockrun that hardly gets a processor must end its command.
storms: export SECONDS_PER_STORE ?= 240
storms: export RUST_TEST_THREADS ?= $(shell expr 4 '*' $$(nproc))
storms: $(binary)
	scripts/install-test-deps
	$(tested) --test suite -- chaos::storms::of_short_lived_processes::$(STORE) --nocapture

# One store after the other, so that each has the whole machine.
handoffs: export HANDOFFS ?= 20000
handoffs: export RUST_TEST_THREADS ?= 1
handoffs: $(binary)
	scripts/install-test-deps
	$(tested) --test suite -- chaos::hand_offs::in_turn::$(STORE) --nocapture

# All stores side by side: they are idle most of the time.
soak: export MINUTES ?= 12
soak: export RUST_TEST_THREADS ?= 7
soak: $(binary)
	scripts/install-test-deps
	$(tested) --test suite -- chaos::soak::held_and_used::$(STORE) --nocapture

simulate: export SEEDS ?= 20000
simulate:
	$(CARGO) test --release --locked --bin lockrun -- simulation::whatever_happens --exact --nocapture

mutants:
	scripts/install-test-deps
	scripts/mutants

# Uses the compiler that builds lockrun. `make test` repeats the inputs in fuzz/corpus.
fuzz: export SECONDS_PER_TARGET ?= 60
fuzz:
	scripts/fuzz

check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	@$(MAKE) --no-print-directory check-generated

# Does not check for known vulnerabilities, which needs a database on the network: `cargo deny check advisories` does.
deny:
	$(CARGO) deny --locked check bans licenses sources

check-generated: $(binary)
	@status=0; \
	for pair in $(generated); do \
		$(binary) generate "$${pair%%:*}" | diff -u "$${pair#*:}" - || status=1; \
	done; \
	if [ $$status -ne 0 ]; then echo 'make: a generated file is out of date: run "make generate"' >&2; fi; \
	exit $$status

demo: $(binary)
	scripts/demo $(binary)

generate: $(binary)
	mkdir -p man
	@set -e; \
	for pair in $(generated); do \
		$(binary) generate "$${pair%%:*}" >"$${pair#*:}.new"; \
		mv "$${pair#*:}.new" "$${pair#*:}"; \
		echo "wrote $${pair#*:}"; \
	done

bench: $(binary)
	benches/run $(binary)

# Builds only if the binary is older than its sources, so `make && sudo make install` needs no cargo as root.
install: $(binary)
	$(INSTALL) -d $(DESTDIR)$(bindir) $(DESTDIR)$(mandir)/man1 $(DESTDIR)$(bashdir) $(DESTDIR)$(zshdir) $(DESTDIR)$(fishdir) \
		$(DESTDIR)$(tmpfilesdir)
	$(INSTALL) -m 755 $(binary) $(DESTDIR)$(bindir)/lockrun
	$(INSTALL) -m 644 man/lockrun.1 $(pages:%=man/%.1) $(DESTDIR)$(mandir)/man1
	$(INSTALL) -m 644 completions/lockrun.bash $(DESTDIR)$(bashdir)/lockrun
	$(INSTALL) -m 644 completions/_lockrun $(DESTDIR)$(zshdir)/_lockrun
	$(INSTALL) -m 644 completions/lockrun.fish $(DESTDIR)$(fishdir)/lockrun.fish
	$(INSTALL) -m 644 packaging/tmpfiles.conf $(DESTDIR)$(tmpfilesdir)/lockrun.conf

uninstall:
	rm -f $(DESTDIR)$(bindir)/lockrun $(DESTDIR)$(mandir)/man1/lockrun.1 $(pages:%=$(DESTDIR)$(mandir)/man1/%.1) \
		$(DESTDIR)$(bashdir)/lockrun $(DESTDIR)$(zshdir)/_lockrun $(DESTDIR)$(fishdir)/lockrun.fish \
		$(DESTDIR)$(tmpfilesdir)/lockrun.conf

# A Debian package of the release binary, in $(target)/package.
deb: $(binary)
	packaging/deb $(binary) $(target)/package

# An archive with the same files, and the checksums of everything in $(target)/package.
dist: $(binary)
	packaging/tarball $(binary) $(target)/package

# An RPM package; needs `cargo install cargo-generate-rpm`.
rpm: $(binary)
	mkdir -p $(target)/package
	$(CARGO) generate-rpm --output $(target)/package/

clean:
	$(CARGO) clean
