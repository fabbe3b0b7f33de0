// SPDX-License-Identifier: GPL-2.0
/*
 * Proves that KVM_X86_QUIRK_SLOT_ZAP_ALL is honoured for VMs that have a device:
 * the removal of any memslot zaps all, as their VMMs may rely on, and what is
 * still there comes back without a fault.
 *
 * Wants a device that is bound to vfio-pci, in an IOMMU group of its own.
 */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#include <sys/ioctl.h>

#include <linux/vfio.h>

#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp.h"

#define MEM_SIZE	SZ_16M
#define NR_PAGES	(MEM_SIZE / PAGE_SIZE)

/* The memory, half of it in each memslot. */
#define SLOT_SIZE	(MEM_SIZE / 2)
#define SLOT_PAGES	(NR_PAGES / 2)
#define OTHER_SLOT	(GTDP_SLOT + 1)
#define OTHER_GPA	(GTDP_GPA + SLOT_SIZE)

#define HOST_TAG	1
#define GUEST_TAG	1000000

/* The IOMMU group of the device. */
static int group;

struct env {
	struct kvm_vm *vm;
	struct kvm_vcpu *vcpu;
	struct gtdp_mem mem, slot, other;
	u64 nr_code;
	int container;
	int vfio;
};

static int open_group(void)
{
	char path[64];
	struct dirent *entry;
	DIR *dir = opendir("/dev/vfio");
	int fd = -1;

	while (dir && fd < 0 && (entry = readdir(dir))) {
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/dev/vfio/%.16s", entry->d_name);
		fd = open(path, O_RDWR);
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* Let the device have all of the VM's memory for DMA, which pins it. */
static void map_dma(struct env *env)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (u64)env->mem.hva,
		.iova = GTDP_GPA,
		.size = MEM_SIZE,
	};
	int r;

	env->container = open_path_or_exit("/dev/vfio/vfio", O_RDWR);
	r = ioctl(group, VFIO_GROUP_SET_CONTAINER, &env->container);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_GROUP_SET_CONTAINER", r));
	r = ioctl(env->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_SET_IOMMU", r));
	r = ioctl(env->container, VFIO_IOMMU_MAP_DMA, &map);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_IOMMU_MAP_DMA", r));
}

static void assign(struct env *env)
{
	env->vfio = kvm_create_device(env->vm, KVM_DEV_TYPE_VFIO);
	kvm_device_attr_set(env->vfio, KVM_DEV_VFIO_FILE, KVM_DEV_VFIO_FILE_ADD, &group);
}

static void take_away(struct env *env)
{
	int r;

	kvm_device_attr_set(env->vfio, KVM_DEV_VFIO_FILE, KVM_DEV_VFIO_FILE_DEL, &group);
	r = ioctl(group, VFIO_GROUP_UNSET_CONTAINER);
	TEST_ASSERT(!r, __KVM_SYSCALL_ERROR("VFIO_GROUP_UNSET_CONTAINER", r));
	close(env->container);
	close(env->vfio);
}

static void env_create(struct env *env, u64 features)
{
	gtdp_mem_alloc(&env->mem, GTDP_ANON, MEM_SIZE, 0);
	gtdp_stamp(env->mem.hva, NR_PAGES, HOST_TAG);

	env->slot = env->mem;
	env->slot.size = SLOT_SIZE;
	env->other = env->slot;
	env->other.hva += SLOT_SIZE;

	env->vm = gtdp_vm_create(features, 1, &env->vcpu);
	gtdp_populate_code(env->vm);
	env->nr_code = gtdp_nr_mapped(env->vm);
	gtdp_add_slot(env->vm, GTDP_SLOT, 0, GTDP_GPA, &env->slot);
	gtdp_add_slot(env->vm, OTHER_SLOT, 0, OTHER_GPA, &env->other);

	map_dma(env);
	assign(env);
}

static void env_destroy(struct env *env)
{
	kvm_vm_free(env->vm);
	gtdp_mem_free(&env->mem);
}

static bool test_ioctl(void)
{
	struct env env;

	env_create(&env, KVM_GLOBAL_TDP_POPULATE);

	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, HOST_TAG), 0);
	gtdp_delete_slot(env.vm, OTHER_SLOT);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), 0);

	/* Without the device, the other memslot is left alone. */
	gtdp_add_slot(env.vm, OTHER_SLOT, 0, OTHER_GPA, &env.other);
	take_away(&env);
	gtdp_populate_full(env.vm, GTDP_GPA, MEM_SIZE);
	gtdp_delete_slot(env.vm, OTHER_SLOT);
	TEST_ASSERT_EQ(gtdp_nr_mapped(env.vm), SLOT_PAGES);

	env_destroy(&env);
	return true;
}

static bool test_follower(void)
{
	struct env env;

	env_create(&env, GTDP_ALL);

	gtdp_wait_mapped(env.vm, env.nr_code + NR_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_STAMP, GTDP_GPA, NR_PAGES, GUEST_TAG), 0);
	gtdp_delete_slot(env.vm, OTHER_SLOT);
	gtdp_wait_mapped(env.vm, env.nr_code + SLOT_PAGES);
	TEST_ASSERT_EQ(gtdp_run(env.vcpu, GTDP_CHECK, GTDP_GPA, SLOT_PAGES, GUEST_TAG), 0);
	gtdp_check(env.mem.hva, NR_PAGES, GUEST_TAG);

	take_away(&env);
	env_destroy(&env);
	return true;
}

static const struct gtdp_test tests[] = {
	{ "ioctl", test_ioctl },
	{ "follower", test_follower },
};

int main(void)
{
	gtdp_require(GTDP_ALL);
	group = open_group();
	__TEST_REQUIRE(group >= 0, "needs a device that is bound to vfio-pci");
	gtdp_run_tests(tests, ARRAY_SIZE(tests));
}
