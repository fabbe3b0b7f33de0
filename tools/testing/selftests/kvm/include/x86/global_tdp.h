/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of Global TDP share: a VM with some of its parts enabled, host
 * memory of every kind, and a guest that touches, stamps and checks pages on
 * command, so that a test can count the stage-2 faults of each command.
 */
#ifndef SELFTEST_KVM_GLOBAL_TDP_H
#define SELFTEST_KVM_GLOBAL_TDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <linux/sizes.h>

#include "kvm_util.h"
#include "processor.h"

/*
 * Where tests put memory: slots from GTDP_SLOT on, within a window of the guest
 * physical address space whose virtual addresses are the same.
 */
#define GTDP_SLOT		10
#define GTDP_GPA		SZ_4G
#define GTDP_WINDOW		SZ_1G

/* Pages per 2MiB. */
#define GTDP_REGION_PAGES	(SZ_2M / PAGE_SIZE)

/* Where in a page gtdp_make_code() puts it: apart from what is written there. */
#define GTDP_CODE_OFFSET	64

/* A VM that is left to the default, i.e. to the module's parameter. */
#define GTDP_DEFAULT		(~0ULL)
#define GTDP_ALL		(KVM_GLOBAL_TDP_FOLLOW |	\
				 KVM_GLOBAL_TDP_FAULT_AROUND |	\
				 KVM_GLOBAL_TDP_POPULATE |	\
				 KVM_GLOBAL_TDP_PAGE_CACHE)
/* And what is never on but on request, where CPUs have Accessed bits. */
#define GTDP_SUPPORTED		(GTDP_ALL | KVM_GLOBAL_TDP_HARVEST)

enum gtdp_backing {
	GTDP_ANON,		/* small pages */
	GTDP_THP,
	GTDP_HUGETLB,
	GTDP_HUGETLB_1G,	/* if there is any, reserved by somebody */
	GTDP_SHMEM,		/* small pages */
	GTDP_MEMFD,		/* small pages */
	GTDP_FILE_PRIVATE,
	GTDP_FILE_SHARED,
};

struct gtdp_mem {
	void *hva;
	size_t size;
	/* The file behind the mapping, -1 if there is none. */
	int fd;
	void *map;
	size_t map_size;
};

enum gtdp_op {
	GTDP_READ,		/* one load per page */
	GTDP_WRITE,		/* one store per page, not where the stamps are */
	GTDP_CHECK,		/* that the pages are stamped */
	GTDP_STAMP,		/* the pages */
	GTDP_CHECK_ZERO,	/* that the pages are zero, where stamps are */
	GTDP_EXEC,		/* what gtdp_make_code() has put into the pages */
};

/* What a vCPU is to do with the pages 0, step, 2 * step, ... of nr pages. */
struct gtdp_job {
	enum gtdp_op op;
	u64 gpa;
	u64 nr;
	u64 step;
	/* Page n has, or gets, the stamp tag + n. */
	u64 tag;
};

/*
 * Bound of what should take a fraction of a second, if not emulated.  Less than what
 * tests are ended after from outside, so that they say what they waited for, and put
 * back what they have changed.
 */
#define GTDP_WAIT_SECONDS	40

/*
 * Twice what a follower sleeps at most until it sees what is new, or has arrived:
 * 250ms after a pass that took long, 300ms if it has waited for a second.
 */
#define GTDP_SOON_MSECS		600

/*
 * Wait for what somebody else does; if nobody does, fail, and say for what.  With 0
 * as @usecs, don't sleep between two looks.
 */
#define __gtdp_wait_until(condition, usecs)					\
do {										\
	time_t __end = time(NULL) + GTDP_WAIT_SECONDS;				\
	const useconds_t __usecs = (usecs);					\
										\
	while (!(condition)) {							\
		TEST_ASSERT(time(NULL) < __end, "Not in %d s: %s",		\
			    GTDP_WAIT_SECONDS, #condition);			\
		if (__usecs)							\
			usleep(__usecs);					\
	}									\
} while (0)

#define gtdp_wait_until(condition)	__gtdp_wait_until(condition, 1000)

struct gtdp_test {
	const char *name;
	/* Returns false if this can't be tested here. */
	bool (*fn)(void);
};

void gtdp_require(u64 features);
bool gtdp_enabled_by_default(void);
void gtdp_run_tests(const struct gtdp_test *tests, int nr);
/* Of all tests, those with @part in their name, all if that is NULL. */
bool gtdp_is_chosen(const char *name, const char *part);
void gtdp_run_some_tests(const struct gtdp_test *tests, int nr, const char *part);

/* @ring_size is the size of the dirty rings in bytes, 0 for none. */
struct kvm_vm *__gtdp_vm_create(u64 features, u32 ring_size,
				int nr_vcpus, struct kvm_vcpu *vcpus[]);
struct kvm_vm *gtdp_vm_create(u64 features, int nr_vcpus,
			      struct kvm_vcpu *vcpus[]);
/* The same in two steps, between which features can be chosen. */
struct kvm_vm *gtdp_vm_create_bare(int nr_vcpus);
void gtdp_vm_add_vcpus(struct kvm_vm *vm, int nr_vcpus, struct kvm_vcpu *vcpus[]);
u64 gtdp_code_size(struct kvm_vm *vm);
void gtdp_populate_code(struct kvm_vm *vm);
void gtdp_prefault(struct kvm_vcpu *vcpu, u64 gpa, u64 size);
void gtdp_prefault_code(struct kvm_vcpu *vcpu);

/* Returns false if there is no such memory to be had. */
bool gtdp_mem_alloc(struct gtdp_mem *mem, enum gtdp_backing backing,
		    size_t size, size_t offset);
void gtdp_mem_free(struct gtdp_mem *mem);
void gtdp_add_slot(struct kvm_vm *vm, u32 slot, u32 flags,
		   u64 gpa, struct gtdp_mem *mem);
void gtdp_delete_slot(struct kvm_vm *vm, u32 slot);

void gtdp_stamp(void *hva, u64 nr, u64 tag);
void gtdp_make_code(void *hva, u64 nr);
void gtdp_check(void *hva, u64 nr, u64 tag);
u64 gtdp_nr_resident(void *hva, size_t size);
u64 gtdp_huge_bytes(void *hva);
/* These say so if there are none, or less. */
bool gtdp_has_thp(void);
bool gtdp_has_ad_bits(void);
bool gtdp_is_huge(void *hva, u64 bytes);
u64 gtdp_get_pfns(void *hva, u64 nr, u64 *pfns);
bool gtdp_page_flag(u64 pfn, unsigned int flag);
void gtdp_drain_lru(void);
u64 gtdp_nr_held(const u64 *pfns, u64 nr);

/* Make the page a bad one; returns false, and says so, if that can't be done here. */
bool gtdp_poison(void *hva);
/* Have the guest read such a page: it does not get any further, its thread is told. */
void gtdp_check_poisoned(struct kvm_vcpu *vcpu, u64 gpa, void *hva);

int gtdp_populate_on(struct kvm_vm *vm, struct kvm_populate_memory *range,
		     struct kvm_populate_memory *sum);
struct kvm_populate_memory gtdp_populate(struct kvm_vm *vm, u64 gpa,
					 u64 size);
void gtdp_populate_async(struct kvm_vm *vm, u64 gpa, u64 size);
void gtdp_populate_full(struct kvm_vm *vm, u64 gpa, u64 size);
u64 gtdp_harvest(struct kvm_vm *vm, u32 as_id, u64 gpa, u64 size, u64 *bitmap);

/*
 * Set, in @log, the bits of those of the @nr_pages pages of GTDP_SLOT that are in
 * the vCPU's dirty ring from entry @first on, counted from when it was created.
 * If @harvest, leave the entries to KVM_RESET_DIRTY_RINGS.  Returns their number.
 */
u32 gtdp_read_ring(struct kvm_vcpu *vcpu, u32 first, unsigned long *log,
			u64 nr_pages, bool harvest);

u64 gtdp_vm_stat(struct kvm_vm *vm, const char *name);
u64 gtdp_vm_hist(struct kvm_vm *vm, const char *name, u64 *least);
u64 gtdp_vcpu_stat(struct kvm_vcpu *vcpu, const char *name);
u64 gtdp_nr_mapped(struct kvm_vm *vm);
u64 gtdp_nr_populated(struct kvm_vm *vm);
int gtdp_kernel_threads(pid_t *tids, int max);
u64 gtdp_read_number(const char *dir, const char *name);
bool gtdp_has_vm(pid_t pid);
u64 gtdp_vm_stat_of(pid_t pid, const char *name);
bool gtdp_has_stat_file(pid_t pid, const char *name);
u64 gtdp_cpu_time(pid_t tid);
u64 gtdp_nr_sleeps(pid_t tid);
bool gtdp_is_asleep(pid_t tid);
u64 gtdp_nr_absent(struct kvm_vm *vm);
void gtdp_wait_mapped(struct kvm_vm *vm, u64 nr);
void gtdp_wait_mapped_in(struct kvm_vm *vm, u64 nr, int msecs);
void __gtdp_wait_mapped(struct kvm_vm *vm, u64 nr, void (*action)(void *arg),
			void *arg);

void gtdp_set_job(struct kvm_vcpu *vcpu, struct gtdp_job job);
void gtdp_finish_job(struct kvm_vcpu *vcpu);
u64 gtdp_run_job(struct kvm_vcpu *vcpu, struct gtdp_job job);
u64 gtdp_run(struct kvm_vcpu *vcpu, enum gtdp_op op, u64 gpa,
		  u64 nr, u64 tag);
int gtdp_try(struct kvm_vcpu *vcpu, enum gtdp_op op, u64 gpa, u64 nr,
	     u64 tag);

bool gtdp_has_zram_swap(u64 bytes);
bool gtdp_write_file(const char *dir, const char *name, const char *text);
/* A parameter of kvm.ko, which has its old value again when the program ends. */
bool gtdp_set_param(const char *name, const char *value);
bool gtdp_param_is(const char *name, const char *value);
void gtdp_restore_params(void);
char *gtdp_cgroup_create(const char *parent, const char *controller);
u64 gtdp_cgroup_stat(const char *path, const char *name, const char *key);
void gtdp_cgroup_destroy(char *path);

/* A VMM in a process of its own, for what can only be done to all of one. */
pid_t gtdp_start(const char *cgroup, void (*vmm)(void));
bool gtdp_is_alive(pid_t pid);
void gtdp_check_exit(pid_t pid);

#endif /* SELFTEST_KVM_GLOBAL_TDP_H */
