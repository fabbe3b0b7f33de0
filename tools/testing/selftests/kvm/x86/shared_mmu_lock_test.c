// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that kvm.shared_mmu_lock is a property of a VM, from its creation on, by what
 * can be seen of it without a clock: what the host takes away is zapped in two steps,
 * the first of which holds mmu_lock for read, instead of one.  And that what is zapped,
 * logged and deleted meanwhile is what it would be otherwise.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <linux/sizes.h>
#include <sys/mman.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"

#define PARAMS		"/sys/module/kvm/parameters/"
#define SHARED_MMU_LOCK	PARAMS "shared_mmu_lock"
#define GLOBAL_TDP	PARAMS "global_tdp"

/* Counts how often KVM goes over a range of a memslot to zap it. */
#define TRACING		"/sys/kernel/tracing/"
#define PROBE		"shared_mmu_lock_test"
#define PROBE_ON	TRACING "events/kprobes/" PROBE "/enable"

#define SLOT		1
#define GPA		SZ_4G
#define NR_HUGE		8
#define SIZE		(NR_HUGE * SZ_2M)
#define NR_PAGES	(SIZE / SZ_4K)

static void guest_code(void)
{
	u64 *page = (u64 *)GPA;
	u64 i, sum;

	for (;;) {
		for (i = 0, sum = 0; i < NR_PAGES; i++)
			sum += READ_ONCE(page[i * SZ_4K / sizeof(*page)]);
		GUEST_SYNC(sum);

		for (i = 0; i < NR_PAGES; i++)
			WRITE_ONCE(page[i * SZ_4K / sizeof(*page)], 1);
		GUEST_SYNC(NR_PAGES);
	}
}

static u64 run(struct kvm_vcpu *vcpu)
{
	struct ucall uc;

	vcpu_run(vcpu);
	TEST_ASSERT_EQ(get_ucall(vcpu, &uc), UCALL_SYNC);
	return uc.args[1];
}

static struct param {
	const char *path;
	char initial[16];
} params[2];
static int nr_params;

static void write_param(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);

	TEST_ASSERT(fd >= 0 && write(fd, value, strlen(value)) == strlen(value),
		    "Can't write %s", path);
	close(fd);
}

static void restore_params(void)
{
	while (nr_params--)
		write_param(params[nr_params].path, params[nr_params].initial);
}

/* Returns false if there is none. */
static bool save_param(const char *path)
{
	struct param *param = &params[nr_params];
	int fd = open(path, O_RDONLY);

	param->path = path;
	if (fd < 0 || read(fd, param->initial, sizeof(param->initial) - 1) < 1)
		return false;

	close(fd);
	nr_params++;
	return true;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_APPEND);

	TEST_ASSERT(fd >= 0 && write(fd, text, strlen(text)) == strlen(text),
		    "Can't write %s", path);
	close(fd);
}

static void remove_probe(void)
{
	write_file(PROBE_ON, "0");
	write_file(TRACING "kprobe_events", "-:" PROBE);
}

static void create_probe(void)
{
	write_file(TRACING "kprobe_events", "p:" PROBE " kvm_unmap_gfn_range");
	atexit(remove_probe);
	write_file(PROBE_ON, "1");
}

static u64 nr_zaps(void)
{
	FILE *file = fopen(TRACING "kprobe_profile", "r");
	char name[64];
	u64 nr;

	TEST_ASSERT(file, "Can't read how often the probe was hit");
	while (fscanf(file, "%63s %lu %*u", name, &nr) == 2) {
		if (strcmp(name, PROBE))
			continue;
		fclose(file);
		return nr;
	}
	TEST_FAIL("The probe is gone");
	return 0;
}

/* A VM with 16MiB, which the guest has read and written to, in huge pages. */
static struct kvm_vm *create(struct kvm_vcpu **vcpu, const char *value)
{
	struct kvm_vm *vm;

	write_param(SHARED_MMU_LOCK, value);
	vm = vm_create_with_one_vcpu(vcpu, guest_code);
	vm_userspace_mem_region_add(vm, VM_MEM_SRC_ANONYMOUS_HUGETLB, GPA, SLOT, NR_PAGES, 0);
	virt_map(vm, GPA, GPA, NR_PAGES);

	TEST_ASSERT_EQ(run(*vcpu), 0);
	TEST_ASSERT_EQ(run(*vcpu), NR_PAGES);
	TEST_ASSERT_EQ(vm_get_stat(vm, pages_2m), NR_HUGE);
	return vm;
}

static u64 count_dirty(struct kvm_vm *vm)
{
	static unsigned long bitmap[NR_PAGES / BITS_PER_LONG];
	u64 nr = 0;
	int i;

	kvm_vm_get_dirty_log(vm, SLOT, bitmap);
	for (i = 0; i < ARRAY_SIZE(bitmap); i++)
		nr += __builtin_popcountl(bitmap[i]);
	return nr;
}

static void test_vm(const char *value, u64 steps)
{
	struct kvm_vcpu *vcpu;
	struct kvm_vm *vm = create(&vcpu, value);
	u64 before;
	int r;

	/* The parameter is of VMs that are created later. */
	write_param(SHARED_MMU_LOCK, *value == 'Y' ? "N" : "Y");

	/* Huge pages are back as soon as logging ends. */
	vm_mem_region_set_flags(vm, SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	TEST_ASSERT_EQ(vm_get_stat(vm, pages_2m), 0);
	vm_mem_region_set_flags(vm, SLOT, 0);
	TEST_ASSERT_EQ(vm_get_stat(vm, pages_2m), NR_HUGE);
	TEST_ASSERT_EQ(run(vcpu), NR_PAGES);
	TEST_ASSERT_EQ(run(vcpu), NR_PAGES);

	/* All that the guest writes is logged, whoever clears the log. */
	vm_mem_region_set_flags(vm, SLOT, KVM_MEM_LOG_DIRTY_PAGES);
	count_dirty(vm);
	TEST_ASSERT_EQ(run(vcpu), NR_PAGES);
	TEST_ASSERT_EQ(count_dirty(vm), 0);
	TEST_ASSERT_EQ(run(vcpu), NR_PAGES);
	TEST_ASSERT_EQ(count_dirty(vm), NR_PAGES);
	vm_mem_region_set_flags(vm, SLOT, 0);

	/* What the host takes away is gone. */
	before = nr_zaps();
	r = madvise(addr_gpa2hva(vm, GPA), SIZE / 2, MADV_DONTNEED);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("madvise()", r));
	TEST_ASSERT_EQ(nr_zaps() - before, steps);
	TEST_ASSERT_EQ(run(vcpu), NR_PAGES / 2);

	/* So is a memslot. */
	vm_mem_region_delete(vm, SLOT);
	TEST_ASSERT_EQ(vm_get_stat(vm, pages_2m), 0);
	kvm_vm_free(vm);
}

int main(void)
{
	TEST_REQUIRE(save_param(SHARED_MMU_LOCK));
	TEST_REQUIRE(get_kvm_param_bool("tdp_mmu") && get_kvm_param_bool("eager_page_split"));
	TEST_REQUIRE(!access(TRACING "kprobe_events", W_OK));
	atexit(restore_params);
	create_probe();

	/* VMs with Global TDP share mmu_lock in any case. */
	if (save_param(GLOBAL_TDP))
		write_param(GLOBAL_TDP, "N");

	test_vm("N", 1);
	test_vm("Y", 2);
	return 0;
}
