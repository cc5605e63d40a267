# Training, replays and store workloads under random faults, for minutes or days: make soak. Included by the Makefile.

.PHONY: soak
soak: ## train, replay and store under random faults: MINUTES= (10); report and chart in BUILD/soak.json, soak.png
	@scripts/deps.sh build test bench && $(MAKE) --no-print-directory all && \
		tests/soak/soak --build $(BUILD) --minutes $(or $(MINUTES),10)
