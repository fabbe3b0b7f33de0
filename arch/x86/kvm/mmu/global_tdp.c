// SPDX-License-Identifier: GPL-2.0
/*
 * Global TDP: build the page tables that all vCPUs of a VM share before the
 * vCPUs fault on them.  tdp_populate.c does the building; what is here decides
 * where and when it pays.
 *
 * See Documentation/virt/kvm/global_tdp.rst.
 */
#include "global_tdp.h"
#include "gtdp.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"

#include <asm/memtype.h>

/* Which VMs have it. */
enum gtdp_mode {
	GTDP_ASK,	/* new ones whose VMM asks for it */
	GTDP_ALWAYS,	/* all new ones */
	GTDP_NEVER,	/* none: those that exist stop using it */
	NR_GTDP_MODES,
};

/* Rows of NR_GTDP_MODES, in their order: names, numbers ("never" has none), booleans. */
static const char * const gtdp_modes[] = {
	[GTDP_ASK]			= "ask", "always", "never",
	[GTDP_ASK + NR_GTDP_MODES]	= "0", "1", "never",
	[GTDP_ASK + 2 * NR_GTDP_MODES]	= "N", "Y",
};

static enum gtdp_mode __read_mostly global_tdp = GTDP_ASK;

static int gtdp_set_mode(const char *val, const struct kernel_param *kp)
{
	int mode = val ? sysfs_match_string(gtdp_modes, val) : GTDP_ALWAYS;
	struct kvm *kvm;

	if (mode < 0)
		return mode;
	WRITE_ONCE(global_tdp, mode % NR_GTDP_MODES);

	/* kvm_destroy_vm() takes the VM off the list before it stops the follower. */
	guard(mutex)(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list) {
		if (!kvm_gtdp(kvm))
			continue;

		/* Memory may have arrived meanwhile. */
		atomic_or(GTDP_URGENT, &kvm->arch.gtdp->marked);
		gtdp_kick_follower(kvm->arch.gtdp);
	}
	return 0;
}

static int gtdp_get_mode(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", gtdp_modes[READ_ONCE(global_tdp)]);
}

static const struct kernel_param_ops gtdp_mode_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = gtdp_set_mode,
	.get = gtdp_get_mode,
};

module_param_cb(global_tdp, &gtdp_mode_ops, NULL, 0644);
__MODULE_PARM_TYPE(global_tdp, "string");
MODULE_PARM_DESC(global_tdp, "VMs whose TDP page tables are built ahead of their vCPUs' faults: always (all new ones), ask (those whose VMM asks), never (none; running VMs stop using it)");

static bool __read_mostly global_tdp_page_cache;
module_param(global_tdp_page_cache, bool, 0644);
MODULE_PARM_DESC(global_tdp_page_cache, "With global_tdp=always, have the host map what its page cache holds around faults, too");

#define KVM_GTDP_FEATURES	(KVM_GLOBAL_TDP_FOLLOW | \
				 KVM_GLOBAL_TDP_FAULT_AROUND | \
				 KVM_GLOBAL_TDP_POPULATE | \
				 KVM_GLOBAL_TDP_PAGE_CACHE)

/* Attempts of KVM_POPULATE_MEMORY at a region that is just being changed. */
#define GTDP_RETRIES		8

/*
 * KVM_POPULATE_MEMORY
 */

/*
 * Populate a region and, if something is absent, have the host map what its page cache
 * has.  Returns what kvm_tdp_populate() does, or -EINTR.
 */
static long gtdp_populate_cached(struct kvm_tdp_populate *p, gfn_t start, gfn_t end)
{
	const u64 mapped = p->mapped, absent = p->absent;
	u64 installed;
	int cached;
	long r;

	end = gtdp_region_end(start, end);
	r = kvm_tdp_populate(p, start, end);
	if (r < 0 || p->absent == absent || start >= tdp_root_nr_gfns(p->role.level))
		return r;

	end = start + r;
	cached = gtdp_map_page_cache(p, start, end, NULL);
	if (!cached)
		return r;

	/* All of it is scanned again. */
	p->mapped = mapped;
	p->absent = absent;
	if (cached < 0)
		return cached;

	installed = p->installed;
	r = kvm_tdp_populate(p, start, end);
	atomic64_add(p->installed - installed, &p->kvm->stat.tdp_page_cache);
	return r;
}

static int gtdp_populate_slot(struct kvm_tdp_populate *p, gfn_t *gfn, gfn_t end, bool cached)
{
	const gfn_t base = round_down(*gfn, SPTE_ENT_PER_PAGE);
	int scans = GTDP_PAGES_PER_BATCH / KVM_PAGES_PER_HPAGE(PG_LEVEL_2M);
	unsigned int run_end;
	long n;

	end = min(end, gtdp_slot_end(p->slot));
	for (; *gfn < end && scans; scans--) {
		/* Begin with a wanted page: without one, no page table is made. */
		if (p->wanted)
			*gfn = base + tdp_next_run(p, *gfn - base, end - base, &run_end);
		if (*gfn == end)
			break;

		n = cached ? gtdp_populate_cached(p, *gfn, end) : kvm_tdp_populate(p, *gfn, end);
		if (n < 0)
			return n;

		/* To map a region on the host takes as long as eight scans do. */
		*gfn += n;
		if (cached || need_resched())
			break;
	}

	return 0;
}

/* The memslot at @gfn or, if a bitmap may have bits of none, the next one, if any. */
static const struct kvm_memory_slot *gtdp_find_slot(struct kvm_memslots *slots, gfn_t *gfn,
						    gfn_t end, bool skip)
{
	struct kvm_memslot_iter iter;

	kvm_for_each_memslot_in_gfn_range(&iter, slots, *gfn, skip ? end : *gfn + 1) {
		if (!gtdp_is_user_slot(iter.slot))
			continue;

		*gfn = max(*gfn, iter.slot->base_gfn);
		return iter.slot;
	}

	if (skip)
		*gfn = end;
	return NULL;
}

/* For memslots can't go away: some of the range, from @gfn on, which moves forward. */
static int gtdp_populate_batch(struct kvm_tdp_populate *p, gfn_t *gfn, gfn_t end,
			       const struct kvm_populate_memory *range)
{
	const bool cached = range->flags & KVM_POPULATE_PAGE_CACHE;
	struct kvm *kvm = p->kvm;
	gfn_t slot_end;

	guard(srcu)(&kvm->srcu);

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_POPULATE))
		return -EOPNOTSUPP;

	p->vma_end = 0;
	p->slot = gtdp_find_slot(__kvm_memslots(kvm, range->as_id), gfn, end,
				 p->wanted);
	if (!p->slot)
		return p->wanted ? 0 : -ENOENT;

	if (!(range->flags & KVM_POPULATE_ASYNC))
		return gtdp_populate_slot(p, gfn, end, cached);

	slot_end = min3(end, gtdp_slot_end(p->slot),
			*gfn + GTDP_PAGES_PER_BATCH * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
	gtdp_mark(kvm->arch.gtdp, p->slot, *gfn, slot_end, GTDP_NEW);
	*gfn = slot_end;
	return 0;
}

/* Get the bits of [@gfn, @end), which is in one 2MiB region, whose first page has bit 0. */
static int gtdp_get_wanted(const struct kvm_populate_memory *range, gfn_t gfn, gfn_t end,
			   unsigned long *wanted)
{
	const gfn_t first = round_down(gfn, BITS_PER_U64);
	const unsigned int start = gfn % SPTE_ENT_PER_PAGE;
	const u64 __user *words = u64_to_user_ptr(range->bitmap);

	words += (first - gpa_to_gfn(range->gpa)) / BITS_PER_U64;
	if (copy_from_user(wanted + first % SPTE_ENT_PER_PAGE / BITS_PER_U64, words,
			   DIV_ROUND_UP(end - first, BITS_PER_U64) * sizeof(u64)))
		return -EFAULT;

	bitmap_clear(wanted, 0, start);
	bitmap_clear(wanted, start + (end - gfn), SPTE_ENT_PER_PAGE - start - (end - gfn));
	return 0;
}

/* The pages of [@gfn, @end), which is in one 2MiB region, whose bits are set. */
static int gtdp_populate_bitmap(struct kvm_tdp_populate *p, gfn_t *gfn, gfn_t end,
				const struct kvm_populate_memory *range)
{
	DECLARE_BITMAP(wanted, SPTE_ENT_PER_PAGE) = {};
	int r;

	r = gtdp_get_wanted(range, *gfn, end, wanted);
	if (r)
		return r;

	if (bitmap_empty(wanted, SPTE_ENT_PER_PAGE)) {
		*gfn = end;
		return 0;
	}

	/* Pages after the last wanted one may be changing, or unusable: leave them out. */
	end = round_down(*gfn, SPTE_ENT_PER_PAGE) + find_last_bit(wanted, SPTE_ENT_PER_PAGE) + 1;
	p->wanted = wanted;
	r = gtdp_populate_batch(p, gfn, end, range);
	p->wanted = NULL;
	return r;
}

static int gtdp_populate(struct kvm *kvm, struct kvm_populate_memory *range)
{
	gfn_t gfn = gpa_to_gfn(range->gpa), before;
	gfn_t end = gfn + (range->size >> PAGE_SHIFT);
	struct kvm_tdp_populate p = { .kvm = kvm };
	int retries = GTDP_RETRIES, r = 0;
	const struct gtdp_timer timer = gtdp_timer();

	/* Unknown until a vCPU has been given its CPUID. */
	if (!kvm_mmu_get_vm_root_role(kvm, range->as_id, &p.role) &&
	    !(range->flags & KVM_POPULATE_ASYNC))
		return -ENXIO;

	while (gfn < end && !r) {
		if (signal_pending(current)) {
			r = -EINTR;
			break;
		}
		cond_resched();

		before = gfn;
		if (range->flags & KVM_POPULATE_BITMAP)
			r = gtdp_populate_bitmap(&p, &gfn, gtdp_region_end(gfn, end), range);
		else
			r = gtdp_populate_batch(&p, &gfn, end, range);
		if (gfn > before)
			retries = GTDP_RETRIES;

		/* What is in the way is mostly gone at once, but don't wait. */
		if (r == -EAGAIN && retries--)
			r = 0;
	}

	kvm_tdp_populate_end(&p);
	atomic64_add(gtdp_timer_ns(&timer), &kvm->stat.tdp_populate_time_ns);

	if (range->flags & KVM_POPULATE_BITMAP) {
		/* If it is to go on, then with a word of the bitmap. */
		if (gfn < end)
			gfn = round_down(gfn, BITS_PER_U64);
		range->bitmap += DIV_ROUND_UP(gfn - gpa_to_gfn(range->gpa), BITS_PER_U64) *
				 sizeof(u64);
	}

	range->gpa = gfn_to_gpa(gfn);
	range->size = gfn_to_gpa(end - gfn);
	range->mapped = p.mapped << PAGE_SHIFT;
	range->absent = p.absent << PAGE_SHIFT;
	return r;
}

static bool gtdp_is_range_valid(struct kvm *kvm, const struct kvm_populate_memory *range)
{
	if (range->flags & ~(KVM_POPULATE_ASYNC | KVM_POPULATE_PAGE_CACHE | KVM_POPULATE_BITMAP) ||
	    range->as_id >= kvm_arch_nr_memslot_as_ids(kvm) || range->reserved)
		return false;

	/* The follower looks for what is present, wherever that is. */
	if (range->flags & KVM_POPULATE_ASYNC && range->flags != KVM_POPULATE_ASYNC)
		return false;

	if (range->flags & KVM_POPULATE_BITMAP ?
	    !gtdp_is_bitmap_aligned(range->gpa, range->bitmap) : range->bitmap)
		return false;

	return PAGE_ALIGNED(range->gpa) && PAGE_ALIGNED(range->size) &&
	       range->gpa + range->size >= range->gpa;
}

int kvm_vm_ioctl_populate_memory(struct kvm *kvm, void __user *argp)
{
	struct kvm_populate_memory range;
	int r;

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_POPULATE))
		return -EOPNOTSUPP;

	if (copy_from_user(&range, argp, sizeof(range)))
		return -EFAULT;

	if (!gtdp_is_range_valid(kvm, &range))
		return -EINVAL;

	if (range.flags & KVM_POPULATE_ASYNC) {
		/* EAGAIN is what fork() says of limits, but it is no use to insist. */
		r = gtdp_start_follower(kvm->arch.gtdp);
		if (r)
			return r == -EINTR ? r : -ENOMEM;
	}

	r = gtdp_populate(kvm, &range);

	if (range.flags & KVM_POPULATE_ASYNC)
		gtdp_wake_follower(kvm->arch.gtdp, GTDP_URGENT);

	if (copy_to_user(argp, &range, sizeof(range)))
		return -EFAULT;

	return r;
}

/*
 * KVM_PRE_FAULT_MEMORY
 */

/* The first page of [@gfn, @end) that the vCPU's root does not map, @end if there is none. */
static gfn_t gtdp_next_hole(struct kvm_vcpu *vcpu, gfn_t gfn, gfn_t end)
{
	struct kvm_mmu_page *root = root_to_sp(vcpu->arch.mmu->root.hpa);
	struct tdp_iter iter;

	/* An obsolete root, whose role says that it is invalid, maps nothing that counts. */
	if (root->role.word != vcpu->arch.mmu->root_role.word)
		return gfn;

	guard(rcu)();

	for_each_tdp_pte(iter, vcpu->kvm, root, gfn, end) {
		if (!is_shadow_present_pte(iter.old_spte))
			return max(gfn, iter.gfn);
	}

	return end;
}

/*
 * Map what is present from the start of @range on, for one hold of mmu_lock.  Returns how
 * many bytes at the start are mapped then.  If that is 0, take a fault, which maps the
 * first page, or tells why it can't be mapped.
 *
 * One page that is faulted in does not make others present, mostly.  Remember how far the
 * walk has come, and don't scan the rest again for each absent page.  What an earlier call
 * has left there costs time only: pages are faulted that could have been populated.
 */
u64 kvm_gtdp_prefault(struct kvm_vcpu *vcpu, const struct kvm_pre_fault_memory *range)
{
	const gfn_t gfn = gpa_to_gfn(range->gpa), end = gfn + (range->size >> PAGE_SHIFT);
	struct kvm_tdp_populate p = {
		.kvm = vcpu->kvm,
		.slot = kvm_vcpu_gfn_to_memslot(vcpu, gfn),
		.role = vcpu->arch.mmu->root_role,
	};
	gfn_t hole;
	long n;

	/* The root of a nested guest that has no TDP of its own may lack A/D bits. */
	if (!kvm_gtdp_has(vcpu->kvm, KVM_GLOBAL_TDP_POPULATE) ||
	    vcpu->arch.mmu != &vcpu->arch.root_mmu || p.role.guest_mode ||
	    !p.slot || !gtdp_is_user_slot(p.slot) || gfn >= tdp_root_nr_gfns(p.role.level))
		return 0;

	p.skip_clean = !(p.slot->flags & KVM_MEM_READONLY);

	if (gfn <= vcpu->arch.gtdp_prefault_last || gfn >= vcpu->arch.gtdp_prefault_end) {
		n = kvm_tdp_populate(&p, gfn, min(end, gtdp_slot_end(p.slot)));
		kvm_tdp_populate_end(&p);
		vcpu->arch.gtdp_prefault_end = 0;
		if (n < 0)
			return 0;
		if (!p.absent)
			return gfn_to_gpa(n);
		vcpu->arch.gtdp_prefault_end = gfn + n;
	}

	vcpu->arch.gtdp_prefault_last = gfn;
	hole = gtdp_next_hole(vcpu, gfn, min(end, vcpu->arch.gtdp_prefault_end));
	return gfn_to_gpa(hole - gfn);
}

/*
 * VM
 */
u64 kvm_gtdp_supported(struct kvm *kvm)
{
	/*
	 * A GFN that is legal for the host must be legal for the guest, lest what a fault
	 * would answer with #PF is mapped.  All SPTEs of a memslot must be alike but for
	 * the pfn: without PAT, those of reserved pages are not, see kvm_is_mmio_pfn().
	 */
	if (!tdp_mmu_enabled || allow_smaller_maxphyaddr || !pat_enabled() || kvm_gtdp_is_stopped())
		return 0;

	/* Private memory is not the host's to map. */
	if (kvm && (kvm->arch.vm_type != KVM_X86_DEFAULT_VM || kvm->arch.gtdp_forbidden))
		return 0;

	/* Harvest clears Accessed bits, by which the host ages memory: VMMs must ask for it. */
	return KVM_GTDP_FEATURES | (kvm_ad_enabled ? KVM_GLOBAL_TDP_HARVEST : 0);
}

bool kvm_gtdp_is_stopped(void)
{
	return READ_ONCE(global_tdp) == GTDP_NEVER;
}

/* The VM has had none of it: prepare it, with nothing on. */
static int gtdp_ensure(struct kvm *kvm)
{
	struct kvm_gtdp *gtdp;

	if (kvm->arch.gtdp)
		return 0;

	gtdp = kzalloc_obj(*gtdp, GFP_KERNEL_ACCOUNT);
	if (!gtdp)
		return -ENOMEM;

	once_init(&gtdp->follower_once);
	gtdp->kvm = kvm;

	/*
	 * The hooks read it without a lock, so publish it complete, and don't
	 * free it before the VM is destroyed.
	 */
	smp_store_release(&kvm->arch.gtdp, gtdp);

	/* Without a vCPU nothing is mapped, i.e. nobody has work to do. */
	WRITE_ONCE(kvm->arch.shared_mmu_lock, true);
	return 0;
}

int kvm_gtdp_init_vm(struct kvm *kvm)
{
	u64 features = KVM_GTDP_FEATURES;

	if (READ_ONCE(global_tdp) != GTDP_ALWAYS || !kvm_gtdp_supported(kvm))
		return 0;

	if (!READ_ONCE(global_tdp_page_cache))
		features &= ~KVM_GLOBAL_TDP_PAGE_CACHE;
	kvm->arch.gtdp_features = features;
	return gtdp_ensure(kvm);
}

/*
 * Track all memslots: forget what is marked, and mark what the follower is to scan.  Only
 * the first call allocates memory, and no feature is on then.
 */
static int gtdp_track_slots(struct kvm *kvm, u64 features)
{
	struct kvm_gtdp *gtdp = kvm->arch.gtdp;
	struct kvm_memory_slot *slot;
	struct kvm_memslots *slots;
	int i, bkt, r;

	lockdep_assert_held(&kvm->slots_lock);

	guard(mutex)(&kvm->slots_arch_lock);

	for (i = 0; i < kvm_arch_nr_memslot_as_ids(kvm); i++) {
		slots = __kvm_memslots(kvm, i);
		kvm_for_each_memslot(slot, bkt, slots) {
			r = slot->arch.gtdp_regions ? 0 : kvm_gtdp_alloc_slot(kvm, slot);
			if (r)
				return r;

			gtdp_mark(gtdp, slot, slot->base_gfn, gtdp_slot_end(slot),
				  !i && (features & KVM_GLOBAL_TDP_FOLLOW) ? GTDP_NEW : GTDP_DONE);
		}
	}

	return 0;
}

/*
 * Turn everything off and, as whoever maps or marks something does so under SRCU
 * after a check of the features, wait for it to be true.
 */
static void gtdp_disable(struct kvm *kvm)
{
	WRITE_ONCE(kvm->arch.gtdp_features, 0);
	synchronize_srcu_expedited(&kvm->srcu);
}

int kvm_gtdp_enable(struct kvm *kvm, u64 features)
{
	int r;

	guard(mutex)(&kvm->lock);

	if (features & ~kvm_gtdp_supported(kvm))
		return -EINVAL;

	if (kvm->created_vcpus)
		return -EBUSY;

	if (!features && !kvm->arch.gtdp)
		return 0;

	guard(mutex)(&kvm->slots_lock);

	r = gtdp_ensure(kvm);
	if (r)
		return r;

	/* Again, if there was no memory the last time: files that exist stay. */
	r = kvm_create_vm_stat_files(kvm);
	if (r)
		return r;

	if (kvm->arch.gtdp_features == features)
		return 0;

	if (kvm->arch.gtdp_features)
		gtdp_disable(kvm);

	r = gtdp_track_slots(kvm, features);
	if (r)
		return r;

	WRITE_ONCE(kvm->arch.gtdp_features, features);
	if (features & KVM_GLOBAL_TDP_FOLLOW)
		gtdp_wake_follower(kvm->arch.gtdp, GTDP_URGENT);
	return 0;
}

void kvm_gtdp_forbid(struct kvm *kvm)
{
	lockdep_assert_held(&kvm->lock);

	kvm->arch.gtdp_forbidden = true;
	if (kvm->arch.gtdp)
		gtdp_disable(kvm);
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(kvm_gtdp_forbid);
