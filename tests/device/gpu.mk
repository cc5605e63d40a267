# SPDX-License-Identifier: MIT
# tests/device/gpu.mk - on a machine with an accelerator; of the Makefile, and of the one in the kit

.PHONY: test-gpu bench-gpu gpu-day
test-gpu: all ## tests of tensors on the accelerator here; PYTHON= MINUTES=5 SEEDS=
	@tests/device/device.sh --build $(BUILD) --gpu --jobs 1 --minutes $(or $(MINUTES),5) --seeds $(or $(SEEDS),10000)

bench-gpu: all ## a GPT on the accelerator here, kept, recomputed, in host memory, on drives; PYTHON= MINUTES=8 BENCH_DEVICES=simulated:6GB/s BENCH_OPTIONS=
	@tests/device/bench.sh --build $(BUILD) --minutes $(or $(MINUTES),8) $(if $(BENCH_DEVICES),--devices $(BENCH_DEVICES)) $(BENCH_OPTIONS)

gpu-day: all ## at most 8 minutes on the accelerator here, what matters most first: bits, then each way's time and memory; PYTHON= BENCH_DEVICES= BENCH_OPTIONS=
	@tests/device/day.sh --build $(BUILD) $(if $(BENCH_DEVICES),--devices $(BENCH_DEVICES)) $(BENCH_OPTIONS)
