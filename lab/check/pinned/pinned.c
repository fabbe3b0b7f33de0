// SPDX-License-Identifier: GPL-2.0
/*
 * What KVM does for a VM that has a device of software, lab_pin, which pins a single
 * page, and whose DMA is not coherent:
 *
 *  - The page that is pinned is the one that the guest has, whatever the host does.
 *  - The removal of any memslot zaps all (KVM_X86_QUIRK_SLOT_ZAP_ALL).
 *  - With EPT, memory types are the guest's to choose from when the device comes until
 *    it goes; each time, all is zapped.  With NPT, nothing happens.
 *
 * Pages are mapped by faults, by KVM_POPULATE_MEMORY or by the follower.  With "stock"
 * as argument, by faults only: there is no KVM_CAP_GLOBAL_TDP then.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <linux/vfio.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_8M
#define NR_PAGES	((uint64_t)(MEM_SIZE / PAGE_SIZE))
#define SLOT_SIZE	(MEM_SIZE / 2)
#define SLOT_PAGES	(NR_PAGES / 2)
#define OTHER_SLOT	(GTDP_SLOT + 1)
#define OTHER_GPA	(GTDP_GPA + SLOT_SIZE)

/* The page that is pinned. */
#define PINNED		777
#define NOWHERE		(~0ull)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* Of an EPT entry: the type of memory, and that the guest's PAT does not count. */
#define EPT_TYPE	0x38
#define EPT_WB		(6 << 3)
#define EPT_IPAT	0x40

#define TRACING		"/sys/kernel/tracing"
#define EVENT		TRACING "/events/kvmmmu/kvm_tdp_mmu_spte_changed"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

enum way {
	FAULT,
	POPULATE,
	FOLLOW,
};

static const char *const way_names[] = { "fault", "populate", "follow" };

static bool stock, ept;

struct env {
	enum way way;
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem, slot, other;
	int container, group, device, vfio;
};

static int open_group(void)
{
	char link[128], path[64];
	int fd;
	ssize_t length = readlink("/sys/devices/platform/lab_pin/iommu_group", link,
				  sizeof(link) - 1);

	TEST_ASSERT(length > 0, "no device lab_pin: load lab_pin.ko");
	link[length] = '\0';
	snprintf(path, sizeof(path), "/dev/vfio/%.16s", strrchr(link, '/') + 1);
	fd = open(path, O_RDWR);
	TEST_ASSERT(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

static void open_device(struct env *env)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uint64_t)env->mem.hva,
		.iova = GTDP_GPA,
		.size = MEM_SIZE,
	};
	int r;

	env->group = open_group();
	env->container = open_path_or_exit("/dev/vfio/vfio", O_RDWR);
	r = ioctl(env->group, VFIO_GROUP_SET_CONTAINER, &env->container);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_GROUP_SET_CONTAINER", r));
	r = ioctl(env->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_SET_IOMMU", r));
	r = ioctl(env->container, VFIO_IOMMU_MAP_DMA, &map);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_IOMMU_MAP_DMA", r));
	env->device = ioctl(env->group, VFIO_GROUP_GET_DEVICE_FD, "lab_pin");
	TEST_ASSERT(env->device >= 0, __KVM_SYSCALL_ERROR("VFIO_GROUP_GET_DEVICE_FD", -1));
	env->vfio = kvm_create_device(env->vm, KVM_DEV_TYPE_VFIO);
}

static void close_device(struct env *env)
{
	close(env->vfio);
	close(env->device);
	close(env->container);
	close(env->group);
}

static void assign(struct env *env)
{
	kvm_device_attr_set(env->vfio, KVM_DEV_VFIO_FILE, KVM_DEV_VFIO_FILE_ADD, &env->group);
}

static void take_away(struct env *env)
{
	kvm_device_attr_set(env->vfio, KVM_DEV_VFIO_FILE, KVM_DEV_VFIO_FILE_DEL, &env->group);
}

static void pin_page(struct env *env, uint64_t iova)
{
	ssize_t r = pwrite(env->device, &iova, sizeof(iova), 0);

	TEST_ASSERT(r == sizeof(iova), __KVM_SYSCALL_ERROR("pin", (int)r));
}

static uint64_t pinned_frame(struct env *env)
{
	uint64_t frame;
	ssize_t r = pread(env->device, &frame, sizeof(frame), 0);

	TEST_ASSERT(r == sizeof(frame), __KVM_SYSCALL_ERROR("frame", (int)r));
	return frame;
}

/* What the device reads where the page is pinned must be what the process has there. */
static void check_device_sees(struct env *env)
{
	static char seen[PAGE_SIZE];
	ssize_t r = pread(env->device, seen, PAGE_SIZE, PAGE_SIZE);

	TEST_ASSERT(r == PAGE_SIZE, __KVM_SYSCALL_ERROR("device reads", (int)r));
	TEST_ASSERT(!memcmp(seen, env->mem.hva + PINNED * PAGE_SIZE, PAGE_SIZE),
		    "The device does not see what the guest has written");
}

/* Have the device write what is stamped, i.e. what the guest must read then. */
static void device_stamps(struct env *env, uint64_t tag)
{
	static char page[PAGE_SIZE];
	ssize_t r;

	gtdp_stamp(page, 1, tag + PINNED);
	r = pwrite(env->device, page, PAGE_SIZE, PAGE_SIZE);
	TEST_ASSERT(r == PAGE_SIZE, __KVM_SYSCALL_ERROR("device writes", (int)r));
}

static uint64_t features_of(enum way way)
{
	if (stock)
		return GTDP_DEFAULT;
	return way == FAULT ? 0 : way == POPULATE ? KVM_GLOBAL_TDP_POPULATE : GTDP_ALL;
}

static void env_create(struct env *env, enum way way)
{
	memset(env, 0, sizeof(*env));
	env->way = way;
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);

	env->slot = env->mem;
	env->slot.size = SLOT_SIZE;
	env->other = env->slot;
	env->other.hva += SLOT_SIZE;

	env->vm = gtdp_vm_create(features_of(way), 1, &env->vcpu);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->slot);
	gtdp_add_slot(env->vm, OTHER_SLOT, 0, OTHER_GPA, &env->other);
	open_device(env);
}

static void env_destroy(struct env *env)
{
	close_device(env);
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

/* Have all of the memory mapped, by writes in the end, for all of it to be writable. */
static void map_all(struct env *env, uint64_t tag)
{
	uint64_t faults;

	if (env->way == POPULATE) {
		/* The guest's own pages, too, or it would fault on these. */
		gtdp_populate_code(env->vm);
		gtdp_populate_full(env->vm, GTDP_GPA, MEM_SIZE);
	} else if (env->way == FOLLOW) {
		gtdp_wait_mapped(env->vm, NR_PAGES);
	}

	faults = gtdp_run(env->vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, tag);
	/* The follower is waited for until so many are mapped, code among them. */
	if (env->way == POPULATE)
		TEST_ASSERT_EQ(faults, 0);
	TEST_ASSERT(gtdp_nr_mapped(env->vm) >= NR_PAGES, "%lu pages are mapped",
		    gtdp_nr_mapped(env->vm));
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC);

	TEST_ASSERT(fd >= 0, "%s: %s", path, strerror(errno));
	TEST_ASSERT(write(fd, text, strlen(text)) == strlen(text), "%s: %s", path,
		    strerror(errno));
	close(fd);
}

/* What was zapped of the memory, as traced. */
struct zapped {
	uint64_t slot, other;
	/* Bits of the type in all of them, and in any of them. */
	uint64_t all, any;
};

static void trace(void)
{
	write_text(TRACING "/trace", " ");
	write_text(EVENT "/enable", "1");
}

static struct zapped traced(void)
{
	const uint64_t first = GTDP_GPA / PAGE_SIZE, last = first + NR_PAGES;
	struct zapped sum = { .all = ~0ull };
	unsigned long long gfn, old, new;
	char line[512], *at;
	FILE *file;
	int level;

	write_text(EVENT "/enable", "0");
	file = fopen(TRACING "/trace", "r");
	TEST_ASSERT(file, "no trace");
	while (fgets(line, sizeof(line), file)) {
		at = strstr(line, "gfn ");
		if (!at || sscanf(at, "gfn %llx level %d old_spte %llx new_spte %llx",
				  &gfn, &level, &old, &new) != 4)
			continue;
		if (level != PG_LEVEL_4K || gfn < first || gfn >= last || !(old & 7) || new & 7)
			continue;
		(gfn < first + SLOT_PAGES) ? sum.slot++ : sum.other++;
		sum.all &= old & (EPT_TYPE | EPT_IPAT);
		sum.any |= old & (EPT_TYPE | EPT_IPAT);
	}
	fclose(file);
	return sum;
}

static void remove_other(struct env *env, bool all)
{
	struct zapped zapped;

	trace();
	gtdp_delete_slot(env->vm, OTHER_SLOT);
	zapped = traced();
	printf("# %s: memslot removed: %lu and %lu pages zapped\n", way_names[env->way],
	       zapped.other, zapped.slot);
	TEST_ASSERT_EQ(zapped.other, SLOT_PAGES);
	TEST_ASSERT_EQ(zapped.slot, all ? SLOT_PAGES : 0);
	gtdp_add_slot(env->vm, OTHER_SLOT, 0, OTHER_GPA, &env->other);
}

static bool test_pinned(enum way way)
{
	static uint64_t pfns[NR_PAGES], before[NR_PAGES];
	const uint64_t gpa = GTDP_GPA + PINNED * PAGE_SIZE;
	uint64_t i, moved = 0;
	struct env env;

	env_create(&env, way);
	assign(&env);
	pin_page(&env, gpa);
	map_all(&env, GUEST_TAG);
	gtdp_get_pfns(env.mem.hva, NR_PAGES, before);
	TEST_ASSERT_EQ(pinned_frame(&env), before[PINNED]);
	check_device_sees(&env);
	device_stamps(&env, 2 * GUEST_TAG);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, gpa, 1, 2 * GUEST_TAG + PINNED), 0);

	TEST_ASSERT(!madvise(env.mem.hva, MEM_SIZE, MADV_PAGEOUT), "MADV_PAGEOUT: %s",
		    strerror(errno));
	TEST_ASSERT(gtdp_nr_resident(env.mem.hva, MEM_SIZE) < NR_PAGES, "nothing is paged out");
	device_stamps(&env, 3 * GUEST_TAG);
	gtdp_run(env.vcpu, GTDP_CHECK, gpa, 1, 3 * GUEST_TAG + PINNED);
	gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, 4 * GUEST_TAG);
	check_device_sees(&env);
	gtdp_get_pfns(env.mem.hva, NR_PAGES, pfns);
	for (i = 0; i < NR_PAGES; i++)
		moved += pfns[i] != before[i];
	printf("# %s: %lu of %lu pages moved\n", way_names[way], moved, NR_PAGES);
	TEST_ASSERT(moved, "no page moved, so nothing is known of the pinned one");
	TEST_ASSERT_EQ(pfns[PINNED], before[PINNED]);
	TEST_ASSERT_EQ(pinned_frame(&env), before[PINNED]);

	remove_other(&env, true);
	map_all(&env, 5 * GUEST_TAG);
	check_device_sees(&env);

	/* Without the device, only a VM with Global TDP keeps the rest. */
	take_away(&env);
	map_all(&env, 6 * GUEST_TAG);
	remove_other(&env, way == FAULT);

	pin_page(&env, NOWHERE);
	env_destroy(&env);
	return true;
}

/* All that is zapped is of this type; with NPT, nothing is. */
static void check_zapped(struct env *env, const char *when, uint64_t type)
{
	struct zapped zapped = traced();

	printf("# %s: %s: %lu pages zapped, type %#lx\n", way_names[env->way], when,
	       zapped.slot + zapped.other, zapped.any);
	TEST_ASSERT_EQ(zapped.slot + zapped.other, ept ? NR_PAGES : 0);
	if (ept) {
		TEST_ASSERT_EQ(zapped.all, type);
		TEST_ASSERT_EQ(zapped.any, type);
	}
}

static bool test_types(enum way way)
{
	struct env env;

	env_create(&env, way);
	map_all(&env, GUEST_TAG);
	trace();
	assign(&env);
	check_zapped(&env, "device comes", EPT_WB | EPT_IPAT);
	map_all(&env, 2 * GUEST_TAG);
	trace();
	take_away(&env);
	check_zapped(&env, "device goes", EPT_WB);
	map_all(&env, 3 * GUEST_TAG);
	trace();
	assign(&env);
	check_zapped(&env, "device is back", EPT_WB | EPT_IPAT);
	take_away(&env);

	env_destroy(&env);
	return true;
}

#define TEST(_what, _way, _WAY)							\
static bool test_##_what##_##_way(void)						\
{										\
	return test_##_what(_WAY);						\
}

TEST(pinned, fault, FAULT)
TEST(pinned, populate, POPULATE)
TEST(pinned, follow, FOLLOW)
TEST(types, fault, FAULT)
TEST(types, populate, POPULATE)
TEST(types, follow, FOLLOW)

static const struct gtdp_test tests[] = {
	{ "pinned page, fault", test_pinned_fault },
	{ "memory types, fault", test_types_fault },
	{ "pinned page, populate", test_pinned_populate },
	{ "memory types, populate", test_types_populate },
	{ "pinned page, follow", test_pinned_follow },
	{ "memory types, follow", test_types_follow },
};

int main(int argc, char **argv)
{
	stock = argc > 1 && !strcmp(argv[1], "stock");
	ept = !access("/sys/module/kvm_intel", F_OK);
	TEST_ASSERT(stock == !kvm_check_cap(KVM_CAP_GLOBAL_TDP),
		    "KVM %s Global TDP", stock ? "has" : "has no");
	gtdp_run_tests(tests, stock ? 2 : ARRAY_SIZE(tests));
}
