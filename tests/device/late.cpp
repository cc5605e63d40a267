// SPDX-License-Identifier: MIT
// tests/device/late.cpp - a device for PyTorch that does what it is given as late as it may
//
// A stream is a queue. A task of it runs when the host waits for it, or by chance, by a seed: so
// every order that the rules of streams and events allow can come, and one that was not asked for
// shows: memory is filled with POISON, in the order of its stream, when it is given back and before
// it is used first, and a copy to the host poisons its target until it runs.
//
// Or it keeps pace with the host's clock: a task begins when its stream and what it waits for are
// done, as on a real device, and an event comes when its time has come. What a task computes is
// computed at the latest then.
//
// What it cannot show: speed, how a real allocator splits blocks, graphs, copies between devices.
//
// It is PyTorch's PrivateUse1, with two devices. An operator that writes into tensors that exist is
// a task of the current stream; any other runs at once, after what that stream was given.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <bit>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>

namespace
{

constexpr int DEVICES = 2;
constexpr int POISON = 0xff; // a NaN, as a float
constexpr auto KIND = c10::DeviceType::PrivateUse1;

using Place = std::pair<int, c10::StreamId>; // a device and its stream

// Besides the order in which tasks happen to run, each stream has a clock: a task takes the time of
// its kind, and begins when its stream is done with the one before and what it waits for has come.
struct Mark { // what one recording of an event waits for
	Place place;
	bool come = false;
	double ns = 0; // by the clock of its stream
};
using MarkPtr = std::shared_ptr<Mark>;

struct Task {
	std::function<void()> run; // or nothing: it waits, or marks
	MarkPtr after, mark;
	double ns = 0;               // that it takes
	const void *reads = nullptr; // of the host's memory, a copy
};

double host_ns()
{
	timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Machine {
	std::recursive_mutex mutex;
	std::map<Place, std::deque<Task>> queues;
	std::mt19937_64 random;
	double by_itself = 0;       // the chance that a task runs when another is given
	double when_asked = 0;      // that an event comes when it is asked for
	bool sides_run = false;     // all but the default streams do at once what they may
	uint64_t host_waits = 0;    // for a default stream, which computes
	uint64_t copies_waited = 0; // of the host, for a copy that it was to wait for
	c10::StreamId streams = 0;
	std::map<Place, double> clocks;
	double operator_ns = 0, copied_byte_ns = 0; // what tasks take
	bool paced = false;                         // the clocks are the host's

	bool luck(double chance)
	{
		return chance > 0 && std::uniform_real_distribution<double>(0, 1)(random) < chance;
	}

	void take(Place place, double ns, const MarkPtr &after)
	{ // by the clock of a stream
		double &clock = clocks[place];
		if (paced)
			clock = std::max(clock, host_ns());
		if (after)
			clock = std::max(clock, after->ns);
		clock += ns;
	}

	bool step(Place place)
	{ // the first task of a queue, if it may run. Return: whether it did
		auto &queue = queues[place];
		if (queue.empty() || (queue.front().after && !queue.front().after->come))
			return false;
		Task task = std::move(queue.front());
		queue.pop_front();
		if (!paced)
			take(place, task.ns, task.after);
		if (task.run) {
			at::AutoDispatchBelowADInplaceOrView below;
			task.run();
		}
		if (task.mark) {
			if (!paced)
				task.mark->ns = clocks[place];
			task.mark->come = true;
		}
		return true;
	}

	void force(Place place)
	{ // the first task, and what it waits for
		auto &queue = queues[place];
		TORCH_INTERNAL_ASSERT(!queue.empty());
		if (MarkPtr after = queue.front().after)
			until(after);
		step(place);
	}

	void until(const MarkPtr &mark)
	{
		while (!mark->come)
			force(mark->place);
	}

	void drain(Place place)
	{
		while (!queues[place].empty())
			force(place);
	}

	void drain_all()
	{
		for (auto &[place, queue] : queues)
			drain(place);
	}

	bool reads(const void *bytes)
	{ // a copy that has not run yet
		for (auto &[place, queue] : queues)
			for (auto &task : queue)
				if (task.reads == bytes)
					return true;
		return false;
	}

	bool has_come(const MarkPtr &mark)
	{
		if (paced && !mark->come && host_ns() >= mark->ns)
			until(mark);
		return mark->come && (!paced || host_ns() >= mark->ns);
	}

	void give(Place place, Task task)
	{
		if (paced)
			take(place, task.ns, task.after);
		if (paced && task.mark)
			task.mark->ns = clocks[place];
		queues[place].push_back(std::move(task));
		for (auto &[other, queue] : queues)
			while (sides_run && other.second != 0 && step(other)) {
			}
		while (luck(by_itself)) {
			auto other = queues.begin();
			std::advance(other, random() % queues.size());
			step(other->first);
		}
	}

	MarkPtr mark(Place place)
	{
		auto mark = std::make_shared<Mark>(Mark{place});
		give(place, {nullptr, nullptr, mark});
		return mark;
	}
};

Machine &machine()
{
	static Machine *machine = new Machine; // tensors outlive everything
	return *machine;
}

uint64_t thread_ns()
{
	timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// Of the two looks at the clock around what the device does, one is not between them.
const uint64_t look_ns = [] {
	uint64_t least = UINT64_MAX;
	for (int i = 0; i < 1000; i++) {
		uint64_t begin = thread_ns();
		least = std::min(least, thread_ns() - begin);
	}
	return least;
}();

thread_local int locks = 0;                  // of this thread
thread_local uint64_t own_ns = 0, locked_ns; // of its time, that this device took

// Whoever waits for it does not hold the interpreter's lock: a task may need that.
struct Lock {
	Lock()
	{
		if (locks++ == 0)
			locked_ns = thread_ns();
		if (machine().mutex.try_lock())
			return;
		if (!PyGILState_Check()) {
			machine().mutex.lock();
			return;
		}
		pybind11::gil_scoped_release without;
		machine().mutex.lock();
	}
	~Lock()
	{
		machine().mutex.unlock();
		if (--locks == 0)
			own_ns += thread_ns() - locked_ns + look_ns;
	}
	Lock(const Lock &) = delete;
};

// Not with the lock, nor with the interpreter's.
void sleep_until(double ns)
{
	timespec until = {static_cast<time_t>(ns / 1e9), static_cast<long>(fmod(ns, 1e9))};
	auto sleep = [&until] {
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
		}
	};

	TORCH_INTERNAL_ASSERT(locks == 0);
	if (ns <= host_ns())
		return;
	if (!PyGILState_Check()) {
		sleep();
		return;
	}
	pybind11::gil_scoped_release without;
	sleep();
}

// A device that keeps pace has done what these streams were given so far.
void sleep_for(const std::vector<Place> &places)
{
	double ns = 0;
	{
		Lock lock;
		for (auto &place : places)
			ns = std::max(ns, machine().clocks[place]);
		if (!machine().paced)
			return;
	}
	sleep_until(ns);
}

void sleep_for_all()
{
	std::vector<Place> places;
	{
		Lock lock;
		for (auto &[place, clock] : machine().clocks)
			places.push_back(place);
	}
	sleep_for(places);
}

thread_local int current_device = 0;
thread_local c10::StreamId current_streams[DEVICES] = {};

int index_of(c10::Device device)
{
	return device.index() < 0 ? current_device : device.index();
}

c10::Stream stream_at(int device, c10::StreamId id)
{
	c10::Device at(KIND, static_cast<c10::DeviceIndex>(device));
	return c10::Stream(c10::Stream::UNSAFE, at, id);
}

Place here(int device)
{
	return {device, current_streams[device]};
}

// ---- Memory ------------------------------------------------------------------------------------

struct Block {
	char *bytes;
	size_t size;
	Place place;                   // of whose pool it is
	std::set<c10::StreamId> users; // by record_stream()
	std::vector<MarkPtr> leaving;  // of the users, since it was given back
};

struct Pools final : c10::DeviceAllocator {
	std::map<void *, Block> live;
	std::vector<Block> leaving; // given back, and used by other streams
	std::map<std::pair<Place, size_t>, std::vector<Block>> free_blocks;
	c10::CachingDeviceAllocator::DeviceStats stats[DEVICES];

	static void free_block(void *bytes);

	static void poison(const Block &block)
	{
		auto fill = [bytes = block.bytes, size = block.size] {
			memset(bytes, POISON, size);
		};
		machine().give(block.place, {fill, nullptr, nullptr});
	}

	void settle()
	{
		auto stays = [this](Block &block) {
			for (auto &mark : block.leaving)
				if (!machine().has_come(mark))
					return true;
			poison(block);
			free_blocks[{block.place, block.size}].push_back(block);
			return false;
		};
		auto end = std::stable_partition(leaving.begin(), leaving.end(), stays);
		leaving.erase(end, leaving.end());
	}

	Block fresh(Place place, size_t size)
	{
		void *bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		TORCH_CHECK(bytes != MAP_FAILED, "no memory");
		stats[place.first].reserved_bytes[0].increase(size);
		Block block{static_cast<char *>(bytes), size, place, {}, {}};
		poison(block);
		return block;
	}

	c10::DataPtr allocate(size_t length) override
	{
		Lock lock;
		c10::Device device(KIND, static_cast<c10::DeviceIndex>(current_device));
		if (length == 0)
			return {nullptr, nullptr, &free_block, device};
		settle();
		Place place = here(current_device);
		size_t size = (length + 511) / 512 * 512;
		auto &blocks = free_blocks[{place, size}];
		Block block;
		if (blocks.empty()) {
			block = fresh(place, size);
		} else {
			block = blocks.back();
			blocks.pop_back();
		}
		block.users.clear();
		block.leaving.clear();
		stats[current_device].allocated_bytes[0].increase(size);
		live[block.bytes] = block;
		return {block.bytes, block.bytes, &free_block, device};
	}

	void give_back(void *bytes)
	{
		Lock lock;
		auto found = live.find(bytes);
		if (found == live.end())
			return;
		Block block = found->second;
		live.erase(found);
		stats[block.place.first].allocated_bytes[0].decrease(block.size);
		for (auto user : block.users)
			block.leaving.push_back(machine().mark({block.place.first, user}));
		leaving.push_back(block);
		settle();
	}

	void used_by(const c10::DataPtr &bytes, c10::Stream stream)
	{
		Lock lock;
		auto found = live.find(bytes.get());
		if (found != live.end() && found->second.place.second != stream.id())
			found->second.users.insert(stream.id());
	}

	c10::DeleterFnPtr raw_deleter() const override
	{
		return &free_block;
	}
	void copy_data(void *to, const void *from, size_t length) const override
	{
		Lock lock;
		machine().drain_all();
		memcpy(to, from, length);
	}
	bool initialized() override
	{
		return true;
	}
	void emptyCache(c10::MempoolId_t) override
	{
	}
	void recordStream(const c10::DataPtr &bytes, c10::Stream stream) override
	{
		used_by(bytes, stream);
	}
	c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override
	{
		return stats[device];
	}
	void resetAccumulatedStats(c10::DeviceIndex) override
	{
	}
	void resetPeakStats(c10::DeviceIndex device) override
	{
		stats[device].allocated_bytes[0].reset_peak();
	}
};

Pools &pools()
{
	static Pools *pools = new Pools;
	return *pools;
}

void Pools::free_block(void *bytes)
{
	pools().give_back(bytes);
}

std::map<uintptr_t, size_t> pinned; // host memory from which copies need no host

bool is_pinned(const void *bytes)
{
	auto after = pinned.upper_bound(reinterpret_cast<uintptr_t>(bytes));
	if (after == pinned.begin())
		return false;
	--after;
	return reinterpret_cast<uintptr_t>(bytes) < after->first + after->second;
}

// PyTorch's own memory that is pinned. Of a real device it is not used again while a copy that
// PyTorch was given may use it; here it is poisoned at once: nothing may rely on that.
struct PinnedMemory final : c10::Allocator {
	inline static size_t used, peak; // bytes
	static void give_back(void *context)
	{
		auto *bytes = static_cast<char *>(context);
		size_t size;
		{
			Lock lock;
			size = pinned[reinterpret_cast<uintptr_t>(bytes)];
			pinned.erase(reinterpret_cast<uintptr_t>(bytes));
			free_blocks()[size].push_back(bytes);
			used -= size;
		}
		memset(bytes, POISON, size);
	}
	static std::map<size_t, std::vector<char *>> &free_blocks()
	{
		static auto *blocks = new std::map<size_t, std::vector<char *>>;
		return *blocks;
	}
	c10::DataPtr allocate(size_t length) override
	{
		Lock lock;
		if (length == 0)
			return {nullptr, nullptr, &give_back, c10::Device(c10::kCPU)};
		length = std::bit_ceil(length); // as of a real device
		auto &blocks = free_blocks()[length];
		char *bytes;
		if (blocks.empty()) {
			void *fresh = mmap(nullptr, length, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			TORCH_CHECK(fresh != MAP_FAILED, "no memory");
			bytes = static_cast<char *>(fresh);
		} else {
			bytes = blocks.back();
			blocks.pop_back();
		}
		pinned[reinterpret_cast<uintptr_t>(bytes)] = length;
		used += length;
		peak = std::max(peak, used);
		return {bytes, bytes, &give_back, c10::Device(c10::kCPU)};
	}
	c10::DeleterFnPtr raw_deleter() const override
	{
		return &give_back;
	}
	void copy_data(void *to, const void *from, size_t length) const override
	{
		memcpy(to, from, length);
	}
};

// ---- Devices, streams, events ------------------------------------------------------------------

struct Event {
	MarkPtr mark;
};

MarkPtr mark_of(void *event)
{
	return event ? static_cast<Event *>(event)->mark : nullptr;
}

void host_waits_for(c10::StreamId stream)
{
	machine().host_waits += stream == 0;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
	c10::DeviceType type() const override
	{
		return KIND;
	}
	c10::Device getDevice() const override
	{
		return {KIND, static_cast<c10::DeviceIndex>(current_device)};
	}
	void setDevice(c10::Device device) const override
	{
		current_device = index_of(device);
	}
	void uncheckedSetDevice(c10::Device device) const noexcept override
	{
		setDevice(device);
	}
	c10::Device exchangeDevice(c10::Device device) const override
	{
		c10::Device before = getDevice();
		setDevice(device);
		return before;
	}
	c10::DeviceIndex deviceCount() const noexcept override
	{
		return DEVICES;
	}
	c10::Stream getStream(c10::Device device) const override
	{
		return stream_at(index_of(device), current_streams[index_of(device)]);
	}
	c10::Stream getDefaultStream(c10::Device device) const override
	{
		return stream_at(index_of(device), 0);
	}
	c10::Stream getNewStream(c10::Device device, int) const override
	{
		Lock lock;
		return stream_at(index_of(device), ++machine().streams);
	}
	c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
	{
		return getNewStream(device, 0);
	}
	c10::Stream exchangeStream(c10::Stream stream) const override
	{
		c10::Stream before = getStream(stream.device());
		current_streams[stream.device_index()] = stream.id();
		return before;
	}
	void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
		    const c10::EventFlag) const override
	{
		Lock lock;
		if (!*event)
			*event = new Event;
		static_cast<Event *>(*event)->mark =
			machine().mark({stream.device_index(), stream.id()});
	}
	void block(void *event, const c10::Stream &stream) const override
	{
		Lock lock;
		if (MarkPtr mark = mark_of(event))
			machine().give({stream.device_index(), stream.id()},
				       {nullptr, mark, nullptr});
	}
	bool queryEvent(void *event) const override
	{
		Lock lock;
		MarkPtr mark = mark_of(event);
		if (mark && !mark->come && machine().luck(machine().when_asked))
			machine().until(mark);
		return !mark || machine().has_come(mark);
	}
	void synchronizeEvent(void *event) const override
	{
		MarkPtr mark = mark_of(event);
		if (!mark)
			return;
		{
			Lock lock;
			host_waits_for(mark->place.second);
			machine().until(mark);
		}
		if (machine().paced)
			sleep_until(mark->ns);
	}
	double elapsedTime(void *begin, void *end, const c10::DeviceIndex) const override
	{ // in milliseconds
		Lock lock;
		return (mark_of(end)->ns - mark_of(begin)->ns) / 1e6;
	}
	void destroyEvent(void *event, c10::DeviceIndex) const noexcept override
	{
		delete static_cast<Event *>(event);
	}
	bool queryStream(const c10::Stream &stream) const override
	{
		Lock lock;
		return machine().queues[{stream.device_index(), stream.id()}].empty();
	}
	void synchronizeStream(const c10::Stream &stream) const override
	{
		{
			Lock lock;
			host_waits_for(stream.id());
			machine().drain({stream.device_index(), stream.id()});
		}
		sleep_for({{stream.device_index(), stream.id()}});
	}
	void synchronizeDevice(c10::DeviceIndex) const override
	{
		{
			Lock lock;
			host_waits_for(0);
			machine().drain_all();
		}
		sleep_for_all();
	}
	void recordDataPtrOnStream(const c10::DataPtr &bytes,
				   const c10::Stream &stream) const override
	{
		pools().used_by(bytes, stream);
	}
};

struct Hooks final : at::PrivateUse1HooksInterface {
	bool isBuilt() const override
	{
		return true;
	}
	bool isAvailable() const override
	{
		return true;
	}
	bool hasPrimaryContext(c10::DeviceIndex) const override
	{
		return true;
	}
	c10::DeviceIndex deviceCount() const override
	{
		return DEVICES;
	}
	void setCurrentDevice(c10::DeviceIndex device) const override
	{
		current_device = device;
	}
	c10::DeviceIndex getCurrentDevice() const override
	{
		return static_cast<c10::DeviceIndex>(current_device);
	}
	c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override
	{
		return static_cast<c10::DeviceIndex>(std::exchange(current_device, device));
	}
	c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override
	{
		return device < 0 || device >= DEVICES ? getCurrentDevice()
						       : exchangeDevice(device);
	}
	at::Allocator *getPinnedMemoryAllocator() const override
	{
		static auto *allocator = new PinnedMemory;
		return allocator;
	}
	bool isPinnedPtr(const void *bytes) const override
	{
		Lock lock;
		return is_pinned(bytes);
	}
	const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override
	{
		return at::globalContext().defaultGenerator(at::kCPU);
	}
	void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override
	{
		Lock lock;
		c10::DataPtr bytes = pools().allocate(size);
		auto copy = [to = bytes.get(), from = storage.mutable_data(),
			     length = std::min(size, storage.nbytes())] {
			memcpy(to, from, length);
		};
		machine().give(here(current_device), {copy, nullptr, nullptr});
		storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(bytes));
		storage.unsafeGetStorageImpl()->set_nbytes(size);
	}
};

// ---- Operators ---------------------------------------------------------------------------------

struct Address { // a tensor as a kernel has it, which holds no memory
	void *bytes;
	std::vector<int64_t> sizes, strides;
	at::TensorOptions options;

	explicit Address(const at::Tensor &tensor)
	    : bytes(tensor.data_ptr()), sizes(tensor.sizes().vec()),
	      strides(tensor.strides().vec()), options(tensor.options().device(at::kCPU))
	{
	}
	at::Tensor tensor() const
	{
		return at::from_blob(bytes, sizes, strides, options);
	}
};

bool is_ours(const at::Tensor &tensor)
{
	return tensor.defined() && tensor.device().type() == KIND;
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
		 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
		 std::optional<c10::MemoryFormat> format)
{
	const c10::DeviceGuard guard(c10::device_or_default(device));
	return at::detail::empty_generic(size, &pools(),
					 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
					 c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
			 std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
			 std::optional<c10::Device> device, std::optional<bool>)
{
	const c10::DeviceGuard guard(c10::device_or_default(device));
	return at::detail::empty_strided_generic(size, stride, &pools(),
						 c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
						 c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
		      std::optional<c10::SymInt> offset)
{
	return at::cpu::as_strided_symint(self, size, stride, offset);
}

const at::Tensor &resize(const at::Tensor &self, c10::SymIntArrayRef size,
			 std::optional<at::MemoryFormat> format)
{
	return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor reshape_alias(const at::Tensor &self, c10::SymIntArrayRef size,
			 c10::SymIntArrayRef stride)
{
	return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
					  C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor &self, c10::SymIntArrayRef size)
{
	return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor &set_to_tensor(at::Tensor &self, const at::Tensor &source)
{
	return at::native::set_tensor_(self, source);
}

at::Tensor &set_to_storage(at::Tensor &self, at::Storage source)
{
	return at::native::set_(self, source);
}

at::Tensor &set_to_part(at::Tensor &self, at::Storage source, int64_t offset, c10::IntArrayRef size,
			c10::IntArrayRef stride)
{
	return at::cpu::set_(self, source, offset, size, stride);
}

// Return: the stream for which the host waits, if it does.
std::optional<Place> begin_copy(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
	Lock lock;
	TORCH_CHECK(!is_ours(from) || !is_ours(to) || from.device() == to.device(),
		    "no copies between devices");
	Place place = here(is_ours(from) ? from.device().index() : to.device().index());
	auto copy = [source = Address(from), target = Address(to)] {
		at::Tensor tensor = target.tensor();
		at::native::copy_(tensor, source.tensor(), false);
	};
	const at::Tensor &host = is_ours(from) ? to : from;
	bool waits = !is_ours(host) && !(non_blocking && is_pinned(host.data_ptr()));
	// What is read from there first is read from as it was.
	if (!waits && !is_ours(to) && to.is_contiguous() && !machine().reads(to.data_ptr()))
		memset(to.data_ptr(), POISON, to.nbytes());
	bool within = is_ours(from) && is_ours(to);
	double ns = within ? machine().operator_ns
			   : machine().copied_byte_ns * static_cast<double>(from.nbytes());
	const void *reads = is_ours(from) ? nullptr : from.data_ptr();
	machine().give(place, {copy, nullptr, nullptr, ns, reads});
	return waits ? std::optional(place) : std::nullopt;
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
	std::optional<Place> place;
	if (from.numel() > 0)
		place = begin_copy(from, to, non_blocking);
	if (!place)
		return to;
	{
		Lock lock;
		machine().copies_waited++;
		machine().drain(*place);
	}
	sleep_for({*place});
	return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
	at::native::resize_(to, from.sizes(), std::nullopt);
	return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor &self)
{
	Place place = here(self.device().index());
	{
		Lock lock;
		machine().drain(place);
	}
	sleep_for({place});
	return Address(self).tensor().item();
}

void record_stream(at::Tensor &self, c10::Stream stream)
{
	pools().used_by(self.storage().data_ptr(), stream);
}

// Whether it only writes into tensors of ours that exist, and gives just these back.
bool runs_late(const c10::FunctionSchema &schema, c10::ArrayRef<c10::IValue> arguments)
{
	size_t written = 0;
	for (size_t i = 0; i < arguments.size(); i++) {
		const auto &value = arguments[i];
		// What is drawn at random is drawn when it is asked for, as by any device.
		if (schema.arguments()[i].name() == "generator")
			return false;
		if (value.isTensorList() || value.isOptionalTensorList() || value.isDevice() ||
		    value.isGenerator())
			return false;
		auto *alias = schema.arguments()[i].alias_info();
		if (!alias || !alias->isWrite() || !value.isTensor())
			continue;
		if (!is_ours(value.toTensor()) || value.toTensor().numel() == 0)
			return false;
		written++;
	}
	for (auto &result : schema.returns())
		if (!result.alias_info() || !result.alias_info()->isWrite())
			return false;
	return written > 0 && written == schema.returns().size();
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
	Lock lock;
	const auto &schema = op.schema();
	size_t begin = stack->size() - schema.arguments().size();
	std::vector<c10::IValue> arguments(stack->begin() + begin, stack->end());
	if (!runs_late(schema, arguments)) {
		for (int device = 0; device < DEVICES; device++)
			machine().drain(here(device));
		machine().take(here(current_device), machine().operator_ns, nullptr);
		at::native::cpu_fallback(op, stack);
		return;
	}
	std::vector<std::pair<size_t, Address>> ours;
	std::vector<at::Tensor> written;
	for (size_t i = 0; i < arguments.size(); i++) {
		if (!arguments[i].isTensor() || !is_ours(arguments[i].toTensor()))
			continue;
		auto *alias = schema.arguments()[i].alias_info();
		if (alias && alias->isWrite())
			written.push_back(arguments[i].toTensor());
		ours.emplace_back(i, Address(arguments[i].toTensor()));
		arguments[i] = c10::IValue();
	}
	auto run = [op, arguments, ours] {
		torch::jit::Stack on_host = arguments;
		for (auto &[i, address] : ours)
			on_host[i] = address.tensor();
		op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &on_host);
	};
	stack->erase(stack->begin() + begin, stack->end());
	for (auto &tensor : written)
		stack->push_back(tensor);
	machine().give(here(written[0].device().index()),
		       {run, nullptr, nullptr, machine().operator_ns});
}

} // namespace

namespace c10::impl
{
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
	m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
	m.impl("empty.memory_format", empty);
	m.impl("empty_strided", empty_strided);
	m.impl("as_strided", as_strided);
	m.impl("resize_", resize);
	m.impl("_reshape_alias", reshape_alias);
	m.impl("view", view);
	m.impl("set_.source_Tensor", set_to_tensor);
	m.impl("set_.source_Storage", set_to_storage);
	m.impl("set_.source_Storage_storage_offset", set_to_part);
	m.impl("_copy_from", copy_from);
	m.impl("_copy_from_and_resize", copy_from_and_resize);
	m.impl("_local_scalar_dense", local_scalar);
	m.impl("record_stream", record_stream);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
	static Hooks hooks;
	c10::SetAllocator(KIND, &pools());
	at::RegisterPrivateUse1HooksInterface(&hooks);
	m.def("seed", [](uint64_t seed, double by_itself, double when_asked, bool sides_run) {
		Lock lock;
		machine().random.seed(seed);
		machine().by_itself = by_itself;
		machine().when_asked = when_asked;
		machine().sides_run = sides_run;
	});
	m.def("tasks_take", [](double operator_ns, double copied_byte_ns) {
		Lock lock;
		machine().operator_ns = operator_ns;
		machine().copied_byte_ns = copied_byte_ns;
	});
	m.def("keep_pace", [](bool paced) {
		Lock lock;
		machine().drain_all();
		machine().clocks.clear();
		machine().paced = paced;
	});
	m.def("own_ns", [] { return own_ns; });
	m.def("clock_ns", [](int device) {
		Lock lock;
		machine().drain_all();
		return machine().clocks[{device, 0}];
	});
	m.def("pin", [](uintptr_t address, size_t length) {
		Lock lock;
		pinned[address] = length;
	});
	m.def("unpin", [](uintptr_t address) {
		Lock lock;
		pinned.erase(address);
	});
	m.def("reset_pinned_peak", [] {
		Lock lock;
		PinnedMemory::peak = PinnedMemory::used;
	});
	m.def("counters", [](int device) {
		Lock lock;
		auto &stats = pools().stats[device];
		return std::map<std::string, int64_t>{
			{"allocated", stats.allocated_bytes[0].current},
			{"peak", stats.allocated_bytes[0].peak},
			{"reserved", stats.reserved_bytes[0].current},
			{"pinned", static_cast<int64_t>(pinned.size())},
			{"pinned_peak", static_cast<int64_t>(PinnedMemory::peak)},
			{"copies_waited", static_cast<int64_t>(machine().copies_waited)},
			{"host_waits", static_cast<int64_t>(machine().host_waits)}};
	});
}
