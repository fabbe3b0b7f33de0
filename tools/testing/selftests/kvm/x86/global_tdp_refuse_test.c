// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that population leaves alone what only the fault path can decide on,
 * and goes on around it: memory with a protection key, mappings of devices, what
 * a guest_memfd has.  A vCPU that touches them gets what it gets without Global TDP.
 * Also that a mapping of a file that is open for reading only is read-only for the
 * guest, and that what is mapped by the time that a fault is done is left alone by
 * that, too.
 *
 * See global_tdp_populate_test for other memory that is not accessible, and
 * global_tdp_poison_test for poisoned pages.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_4M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

#define HOST_TAG	1
#define GMEM_TAG	2000000
#define GUEST_TAG	1000000

/* The BIOS, of which any PC has one. */
#define BIOS_ADDRESS	0xf0000
#define BIOS_SIZE	SZ_64K

/* How often a memslot is created, and in which time after the vCPU has begun. */
#define NR_CREATED	100

/* What this thread may do with memory that has a key; glibc need not know. */
static void write_pkru(u32 pkru)
{
	asm volatile(".byte 0x0f, 0x01, 0xef" : : "a"(pkru), "c"(0), "d"(0) : "memory");
}

static struct kvm_vm *create(struct kvm_vcpu **vcpu, u64 features)
{
	struct kvm_vm *vm = gtdp_vm_create(features, 1, vcpu);

	gtdp_populate_code(vm);
	return vm;
}

/*
 * Whether memory with a protection key can be accessed depends on who does it:
 * leave it to the vCPUs' threads, whatever this one may do.
 */
static bool test_key(enum gtdp_backing backing)
{
	const u64 half = MEM_SIZE / 2, nr = NR_PAGES / 2;
	struct kvm_populate_memory sum;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	int key, r;

	key = syscall(__NR_pkey_alloc, 0, 0);
	if (key < 0) {
		ksft_print_msg("no protection keys: %s\n", strerror(errno));
		return false;
	}

	gtdp_mem_alloc(&mem, backing, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	if (backing == GTDP_THP && !gtdp_is_huge(mem.hva, MEM_SIZE)) {
		gtdp_mem_free(&mem);
		syscall(__NR_pkey_free, key);
		return false;
	}
	r = syscall(__NR_pkey_mprotect, mem.hva, half, PROT_READ | PROT_WRITE, key);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("pkey_mprotect()", r));

	vm = create(&vcpu, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	sum = gtdp_populate(vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(sum.absent, half);
	TEST_ASSERT_EQ(sum.mapped, half);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA + half, nr, HOST_TAG + nr), 0);

	/* The guest gets at it by a thread that may. */
	write_pkru(PKEY_DISABLE_ACCESS << (2 * key));
	TEST_ASSERT_EQ(gtdp_try(vcpu, GTDP_READ, GTDP_GPA, 1, 0), EFAULT);
	write_pkru(0);
	vcpu_run(vcpu);
	gtdp_finish_job(vcpu);
	gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, nr, HOST_TAG);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	syscall(__NR_pkey_free, key);
	return true;
}

static bool test_key_small(void)
{
	return test_key(GTDP_ANON);
}

static bool test_key_huge(void)
{
	return gtdp_has_thp() && test_key(GTDP_THP);
}

/* Memory of a device, between memory that is not. */
static bool test_device(void)
{
	struct kvm_populate_memory sum;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 faults;
	void *hva, *map;
	int fd;

	fd = open("/dev/mem", O_RDONLY);
	if (fd < 0) {
		ksft_print_msg("no /dev/mem\n");
		return false;
	}

	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	hva = mem.hva + SZ_64K;
	map = mmap(hva, BIOS_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd,
		   BIOS_ADDRESS);
	close(fd);
	if (map != hva) {
		ksft_print_msg("the BIOS can't be mapped: %s\n", strerror(errno));
		gtdp_mem_free(&mem);
		return false;
	}

	vm = create(&vcpu, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);

	/* Regions that such a mapping is in are left to the vCPUs. */
	sum = gtdp_populate(vm, GTDP_GPA + SZ_64K, BIOS_SIZE);
	TEST_ASSERT_EQ(sum.mapped, 0);
	TEST_ASSERT_EQ(sum.absent, BIOS_SIZE);
	sum = gtdp_populate(vm, GTDP_GPA, SZ_2M);
	TEST_ASSERT_EQ(sum.mapped, 0);
	gtdp_populate_full(vm, GTDP_GPA + SZ_2M, SZ_2M);

	/* The fault path does map it. */
	faults = gtdp_run(vcpu, GTDP_READ, GTDP_GPA + SZ_64K, BIOS_SIZE / PAGE_SIZE, 0);
	TEST_ASSERT(faults, "The BIOS was mapped");
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_READ, GTDP_GPA + SZ_64K, BIOS_SIZE / PAGE_SIZE, 0), 0);

	gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, SZ_64K / PAGE_SIZE, HOST_TAG);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA + SZ_2M, NR_PAGES / 2,
				HOST_TAG + NR_PAGES / 2), 0);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

/* A file that is open for reading only, mapped for that. */
static bool test_readonly_file(void)
{
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	char path[64];
	void *map;
	int fd;

	gtdp_mem_alloc(&mem, GTDP_MEMFD, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem.fd);
	fd = open(path, O_RDONLY);
	TEST_ASSERT(fd >= 0, __KVM_SYSCALL_ERROR("open()", fd));
	map = mmap(mem.hva, MEM_SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
		   mem.hva - mem.map);
	TEST_ASSERT(map == mem.hva, __KVM_SYSCALL_ERROR("mmap()", -1));
	close(fd);
	gtdp_check(mem.hva, NR_PAGES, HOST_TAG);

	vm = create(&vcpu, KVM_GLOBAL_TDP_POPULATE);
	gtdp_add_slot(vm, GTDP_SLOT, 0, GTDP_GPA, &mem);
	gtdp_populate_full(vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	TEST_ASSERT_EQ(gtdp_try(vcpu, GTDP_STAMP, GTDP_GPA, 1, GUEST_TAG), EFAULT);
	gtdp_check(mem.hva, NR_PAGES, HOST_TAG);

	kvm_vm_free(vm);
	gtdp_mem_free(&mem);
	return true;
}

struct race {
	struct kvm_vm *vm;
	struct gtdp_mem mem;
	struct timespec start;
	s64 delay_ns;
	bool go;
};

static void *create_soon(void *arg)
{
	struct race *race = arg;

	while (!READ_ONCE(race->go) ||
	       timespec_to_ns(timespec_elapsed(race->start)) < race->delay_ns)
		;
	gtdp_add_slot(race->vm, GTDP_SLOT, 0, GTDP_GPA, &race->mem);
	return NULL;
}

/* Returns whether there is a memslot already. */
static bool populate_page(struct kvm_vm *vm)
{
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = PAGE_SIZE };
	int r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);

	TEST_ASSERT(!r || errno == ENOENT || errno == EAGAIN || errno == EINTR,
		    KVM_IOCTL_ERROR(KVM_POPULATE_MEMORY, r));
	return !r;
}

static void *populate_soon(void *arg)
{
	struct race *race = arg;

	__gtdp_wait_until(populate_page(race->vm), 0);
	return NULL;
}

/* Whether there is a memslot by then or not, the guest gets some answer. */
static void read_page(struct kvm_vcpu *vcpu)
{
	gtdp_set_job(vcpu, (struct gtdp_job) {
		.op = GTDP_READ,
		.gpa = GTDP_GPA,
		.nr = 1,
		.step = 1,
	});
	/* One word is read, which is an exit at most. */
	vcpu_run(vcpu);
	if (vcpu->run->exit_reason == KVM_EXIT_MMIO)
		vcpu_run(vcpu);
	gtdp_finish_job(vcpu);
}

/*
 * A memslot is created while a vCPU's fault, which has found none, is on its way;
 * the page is mapped before the fault is done, and remains so.
 */
static bool test_created(void)
{
	pthread_t creator, populator;
	struct kvm_vcpu *vcpu;
	s64 fault_ns = 0;
	struct race race;
	u64 nr_code;
	int i;

	race.vm = create(&vcpu, KVM_GLOBAL_TDP_POPULATE);
	nr_code = gtdp_nr_mapped(race.vm);
	/* A vCPU that is run by another thread than before takes long to begin. */
	gtdp_run(vcpu, GTDP_READ, GTDP_GPA, 0, 0);

	gtdp_mem_alloc(&race.mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(race.mem.hva, NR_PAGES, HOST_TAG);

	for (i = 0; i < NR_CREATED; i++) {
		race.go = false;
		pthread_create(&populator, NULL, populate_soon, &race);
		pthread_create(&creator, NULL, create_soon, &race);

		/* Anywhere in what the fault takes: on a busy host, that varies. */
		race.delay_ns = i * fault_ns / NR_CREATED;
		clock_gettime(CLOCK_MONOTONIC, &race.start);
		WRITE_ONCE(race.go, true);
		read_page(vcpu);
		fault_ns = timespec_to_ns(timespec_elapsed(race.start));
		pthread_join(creator, NULL);
		pthread_join(populator, NULL);

		gtdp_populate(race.vm, GTDP_GPA + PAGE_SIZE, MEM_SIZE - PAGE_SIZE);
		TEST_ASSERT_EQ(gtdp_nr_mapped(race.vm), nr_code + NR_PAGES);
		gtdp_delete_slot(race.vm, GTDP_SLOT);
	}

	kvm_vm_free(race.vm);
	gtdp_mem_free(&race.mem);
	return true;
}

/*
 * The guest's memory is what is in the guest_memfd, whatever the VMM has at the
 * memslot's address; nothing but its faults maps it, page by page.
 */
static bool test_guest_memfd(void)
{
	const u64 flags = GUEST_MEMFD_FLAG_MMAP | GUEST_MEMFD_FLAG_INIT_SHARED;
	struct kvm_populate_memory range = { .gpa = GTDP_GPA, .size = MEM_SIZE };
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem;
	struct kvm_vm *vm;
	u64 nr_code;
	void *gmem;
	int fd, r;

	vm = create(&vcpu, GTDP_ALL);
	if ((vm_check_cap(vm, KVM_CAP_GUEST_MEMFD_FLAGS) & flags) != flags) {
		ksft_print_msg("no guest_memfd that can be mapped\n");
		kvm_vm_free(vm);
		return false;
	}
	nr_code = gtdp_nr_mapped(vm);

	fd = vm_create_guest_memfd(vm, MEM_SIZE, flags);
	gmem = mmap(NULL, MEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TEST_ASSERT(gmem != MAP_FAILED, __KVM_SYSCALL_ERROR("mmap()", -1));
	gtdp_stamp(gmem, NR_PAGES, GMEM_TAG);
	gtdp_mem_alloc(&mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(mem.hva, NR_PAGES, HOST_TAG);
	vm_set_user_memory_region2(vm, GTDP_SLOT, KVM_MEM_GUEST_MEMFD, GTDP_GPA, MEM_SIZE,
				   mem.hva, fd, 0);

	r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT(r && errno == ENOENT, "KVM_POPULATE_MEMORY: %d, errno %d", r, errno);
	TEST_ASSERT_EQ(range.gpa, GTDP_GPA);
	range.flags = KVM_POPULATE_ASYNC;
	r = __vm_ioctl(vm, KVM_POPULATE_MEMORY, &range);
	TEST_ASSERT(r && errno == ENOENT, "KVM_POPULATE_ASYNC: %d, errno %d", r, errno);
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), nr_code);

	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK, GTDP_GPA, NR_PAGES, GMEM_TAG), NR_PAGES);
	gtdp_run(vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG);
	gtdp_check(gmem, NR_PAGES, GUEST_TAG);
	gtdp_check(mem.hva, NR_PAGES, HOST_TAG);

	/* What is taken away is gone, and nobody brings it back ahead of the guest. */
	r = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MEM_SIZE);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("fallocate()", r));
	TEST_ASSERT_EQ(gtdp_nr_mapped(vm), nr_code);
	TEST_ASSERT_EQ(gtdp_run(vcpu, GTDP_CHECK_ZERO, GTDP_GPA, NR_PAGES, 0), NR_PAGES);

	kvm_vm_free(vm);
	munmap(gmem, MEM_SIZE);
	close(fd);
	gtdp_mem_free(&mem);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "protection key", test_key_small },
	{ "protection key, huge pages", test_key_huge },
	{ "device memory", test_device },
	{ "file open for reading", test_readonly_file },
	{ "memslot created under a fault", test_created },
	{ "guest_memfd", test_guest_memfd },
};

int main(void)
{
	gtdp_require(KVM_GLOBAL_TDP_POPULATE);
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
