// SPDX-License-Identifier: GPL-2.0
/*
 * Which pages a guest has accessed, on behalf of Global TDP: CPUs say so in the Accessed
 * bits of the TDP page tables, for nothing.  Whoever records what a guest needs first, to
 * have it mapped the next time, need not have it fault on each page.
 *
 * The host reads the same bits, when it ages memory, and whoever reads a bit clears it.  So
 * each of the two leaves a note to the other, in a bitmap of the memslot, before it clears
 * a bit, and looks for notes after it has read the bits: whoever finds a bit clear finds
 * the note.  An SPTE that is zapped leaves one, too.
 */
#include "global_tdp.h"
#include "gtdp.h"
#include "tdp_iter.h"
#include "tdp_mmu.h"

/* Who reads Accessed bits, and notes of those that the other one has cleared. */
enum gtdp_reader {
	GTDP_HARVESTER,
	GTDP_HOST,
	GTDP_READERS,
};

/*
 * Words per batch, i.e. 16MiB.  Of 4KiB SPTEs, all of which have been accessed, some 50,000
 * instructions with mmu_lock held for read.
 */
#define GTDP_HARVEST_WORDS	64

/* What is harvested of a part of an address space. */
struct gtdp_harvest {
	struct kvm *kvm;
	int as_id;
	gfn_t start;
	gfn_t end;
	/* The bit of @start comes first. */
	u64 bits[GTDP_HARVEST_WORDS];
	/* Some Accessed bits were cleared: CPUs may have the pages in their TLBs. */
	bool flush;
};

static unsigned long gtdp_note_words(const struct kvm_memory_slot *slot)
{
	return (gtdp_slot_end(slot) - 1) / BITS_PER_U64 - slot->base_gfn / BITS_PER_U64 + 1;
}

/* The word with the bit of @gfn. */
static atomic64_t *gtdp_note(const struct kvm_memory_slot *slot, enum gtdp_reader reader,
			     gfn_t gfn)
{
	return slot->arch.gtdp_notes + reader * gtdp_note_words(slot) +
	       gfn / BITS_PER_U64 - slot->base_gfn / BITS_PER_U64;
}

/* The bits of [@gfn, @end) in the word of @gfn. */
static u64 gtdp_note_mask(gfn_t gfn, gfn_t end)
{
	const gfn_t base = round_down(gfn, BITS_PER_U64);

	return GENMASK_ULL(min(end - base, BITS_PER_U64) - 1, gfn - base);
}

static gfn_t gtdp_next_word(gfn_t gfn, gfn_t end)
{
	return min(end, round_down(gfn, BITS_PER_U64) + BITS_PER_U64);
}

static void gtdp_leave_note(const struct kvm_memory_slot *slot, enum gtdp_reader reader,
			    gfn_t gfn, gfn_t end)
{
	for ( ; gfn < end; gfn = gtdp_next_word(gfn, end)) {
		atomic64_t *word = gtdp_note(slot, reader, gfn);
		u64 mask = gtdp_note_mask(gfn, end);

		if (~atomic64_read(word) & mask)
			atomic64_or(mask, word);
	}
}

static u64 gtdp_take_note(const struct kvm_memory_slot *slot, enum gtdp_reader reader,
			  gfn_t gfn, gfn_t end)
{
	atomic64_t *word = gtdp_note(slot, reader, gfn);
	u64 mask = gtdp_note_mask(gfn, end);

	/* Most are empty. */
	if (!(atomic64_read(word) & mask))
		return 0;

	return atomic64_fetch_andnot(mask, word) & mask;
}

/* A huge page may reach over the ends of what is looked at, but not of its memslot. */
static void gtdp_leave_notes(const struct kvm_memory_slot *slot, enum gtdp_reader reader,
			     gfn_t gfn, int level)
{
	gtdp_leave_note(slot, reader, max(gfn, slot->base_gfn),
			min(gfn + KVM_PAGES_PER_HPAGE(level), gtdp_slot_end(slot)));
}

/*
 * The host is about to clear, or has zapped, what says that a page of @slot was accessed.
 */
void __kvm_gtdp_accessed(const struct kvm_memory_slot *slot, gfn_t gfn, int level)
{
	gtdp_leave_notes(slot, GTDP_HARVESTER, gfn, level);
}

/* Memslots may be about to change, but the old ones stay while SRCU is held. */
void __kvm_gtdp_zapped_accessed(struct kvm *kvm, int as_id, gfn_t gfn, int level)
{
	const struct kvm_memory_slot *slot;

	guard(srcu)(&kvm->srcu);

	slot = __gfn_to_memslot(__kvm_memslots(kvm, as_id), gfn);
	if (slot)
		kvm_gtdp_accessed(slot, gfn, level);
}

/* What the host has to know of, for it is not in the SPTEs anymore. */
bool __kvm_gtdp_was_accessed(const struct kvm_memory_slot *slot, gfn_t gfn, gfn_t end,
			     bool test_only)
{
	bool accessed = false;

	for ( ; gfn < end && !(accessed && test_only); gfn = gtdp_next_word(gfn, end)) {
		if (test_only)
			accessed = atomic64_read(gtdp_note(slot, GTDP_HOST, gfn)) &
				   gtdp_note_mask(gfn, end);
		else
			accessed |= !!gtdp_take_note(slot, GTDP_HOST, gfn, end);
	}

	return accessed;
}

static bool gtdp_is_accessed(u64 spte)
{
	const u64 mask = SPTE_MMU_PRESENT_MASK | shadow_accessed_mask;

	return (spte & mask) == mask;
}

/* Whoever changes it meanwhile is told, by its value, that it was accessed, too. */
static void gtdp_clear_accessed(u64 *sptep)
{
	u64 spte = READ_ONCE(*sptep);

	if (gtdp_is_accessed(spte))
		try_cmpxchg64(sptep, &spte, spte & ~shadow_accessed_mask);
}

/* Harvest 4KiB SPTEs from @sptep on: those of [@gfn, @end), of one word. */
static u64 gtdp_harvest_word(struct gtdp_harvest *h, const struct kvm_memory_slot *slot,
			     u64 *sptep, gfn_t gfn, gfn_t end)
{
	const unsigned int first = gfn % BITS_PER_U64;
	unsigned int i, nr = end - gfn;
	unsigned long left;
	u64 bits = 0;

	for (i = 0; i < nr; i++)
		bits |= (u64)gtdp_is_accessed(READ_ONCE(sptep[i])) << i;

	if (!bits)
		return 0;

	atomic64_or(bits << first, gtdp_note(slot, GTDP_HOST, gfn));
	for (left = bits; left; left &= left - 1)
		gtdp_clear_accessed(sptep + __ffs(left));

	h->flush = true;
	return bits << first;
}

static void gtdp_harvest_table(struct gtdp_harvest *h, const struct kvm_memory_slot *slot,
			       u64 *spt, gfn_t gfn, gfn_t end)
{
	gfn_t next;

	for ( ; gfn < end; gfn = next) {
		next = gtdp_next_word(gfn, end);
		h->bits[(gfn - h->start) / BITS_PER_U64] |=
			gtdp_harvest_word(h, slot, spt + gfn % SPTE_ENT_PER_PAGE, gfn, next);
	}
}

/* What was accessed of a huge page is all of it. */
static void gtdp_harvest_huge(struct gtdp_harvest *h, const struct kvm_memory_slot *slot,
			      struct tdp_iter *iter)
{
	if (!gtdp_is_accessed(iter->old_spte))
		return;

	gtdp_leave_notes(slot, GTDP_HARVESTER, iter->gfn, iter->level);
	gtdp_leave_notes(slot, GTDP_HOST, iter->gfn, iter->level);
	gtdp_clear_accessed(rcu_dereference(iter->sptep));
	h->flush = true;
}

static void gtdp_harvest_root(struct gtdp_harvest *h, struct kvm_mmu_page *root,
			      const struct kvm_memory_slot *slot, gfn_t start, gfn_t end)
{
	struct tdp_iter iter;

	for_each_tdp_pte_min_level(iter, h->kvm, root, PG_LEVEL_2M, start, end) {
		if (!is_shadow_present_pte(iter.old_spte))
			continue;

		if (is_last_spte(iter.old_spte, iter.level))
			gtdp_harvest_huge(h, slot, &iter);
		else if (iter.level == PG_LEVEL_2M)
			gtdp_harvest_table(h, slot, spte_to_child_sp(iter.old_spte)->spt,
					   max(start, iter.gfn),
					   gtdp_region_end(iter.gfn, end));
	}
}

/*
 * A page table that is zapped meanwhile stays, under RCU, and its SPTEs are changed by
 * compare-exchange: each tells of an access here or, by a note, to whoever zaps it.
 */
static void gtdp_harvest_slot(struct gtdp_harvest *h, const struct kvm_memory_slot *slot,
			      gfn_t start, gfn_t end)
{
	struct kvm_mmu_page *root;

	read_lock(&h->kvm->mmu_lock);
	rcu_read_lock();

	list_for_each_entry_rcu(root, &h->kvm->arch.tdp_mmu_roots, link) {
		if (!root->role.invalid && kvm_mmu_page_as_id(root) == h->as_id)
			gtdp_harvest_root(h, root, slot, start, end);
	}

	rcu_read_unlock();
	read_unlock(&h->kvm->mmu_lock);
}

static void gtdp_harvest_notes(struct gtdp_harvest *h, const struct kvm_memory_slot *slot,
			       gfn_t start, gfn_t end)
{
	for ( ; start < end; start = gtdp_next_word(start, end))
		h->bits[(start - h->start) / BITS_PER_U64] |=
			gtdp_take_note(slot, GTDP_HARVESTER, start, end);
}

/* Do so with all memslots that there are, and the part of each. */
static void gtdp_for_each_slot(struct gtdp_harvest *h,
			       void (*fn)(struct gtdp_harvest *h,
					  const struct kvm_memory_slot *slot,
					  gfn_t start, gfn_t end))
{
	struct kvm_memslots *slots = __kvm_memslots(h->kvm, h->as_id);
	struct kvm_memslot_iter iter;

	kvm_for_each_memslot_in_gfn_range(&iter, slots, h->start, h->end) {
		if (iter.slot->arch.gtdp_notes)
			fn(h, iter.slot, max(h->start, iter.slot->base_gfn),
			   min(h->end, gtdp_slot_end(iter.slot)));
	}
}

static int gtdp_harvest_batch(struct gtdp_harvest *h)
{
	guard(srcu)(&h->kvm->srcu);

	if (!kvm_gtdp_has(h->kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	memset(h->bits, 0, sizeof(h->bits));
	gtdp_for_each_slot(h, gtdp_harvest_slot);

	/*
	 * Whoever has zapped an SPTE that was not found anymore may be about to leave
	 * the note, but does so before it drops mmu_lock: wait for that.
	 */
	write_lock(&h->kvm->mmu_lock);
	write_unlock(&h->kvm->mmu_lock);

	gtdp_for_each_slot(h, gtdp_harvest_notes);
	return 0;
}

/* Nobody has got to know of these: leave a note, for the next harvest. */
static void gtdp_put_back(struct gtdp_harvest *h)
{
	struct kvm_memory_slot *slot;
	unsigned int i;

	guard(srcu)(&h->kvm->srcu);

	for (i = 0; i < h->end - h->start; i++) {
		if (!(h->bits[i / BITS_PER_U64] & BIT_ULL(i % BITS_PER_U64)))
			continue;

		slot = __gfn_to_memslot(__kvm_memslots(h->kvm, h->as_id), h->start + i);
		if (slot)
			kvm_gtdp_accessed(slot, h->start + i, PG_LEVEL_4K);
	}
}

static int gtdp_harvest(struct gtdp_harvest *h, struct kvm_harvest_accessed *range)
{
	const gfn_t end = gpa_to_gfn(range->gpa + range->size);
	unsigned int i, nr;
	int r;

	h->start = gpa_to_gfn(range->gpa);
	while (h->start < end) {
		if (signal_pending(current))
			return -EINTR;
		cond_resched();

		h->end = min(end, h->start + GTDP_HARVEST_WORDS * BITS_PER_U64);
		nr = DIV_ROUND_UP(h->end - h->start, BITS_PER_U64);

		r = gtdp_harvest_batch(h);
		if (r)
			return r;

		if (copy_to_user(u64_to_user_ptr(range->bitmap), h->bits, nr * sizeof(u64))) {
			gtdp_put_back(h);
			return -EFAULT;
		}

		for (i = 0; i < nr; i++)
			range->accessed += hweight64(h->bits[i]) << PAGE_SHIFT;
		range->bitmap += nr * sizeof(u64);
		h->start = h->end;
		range->gpa = gfn_to_gpa(h->start);
		range->size = gfn_to_gpa(end - h->start);
	}

	return 0;
}

int kvm_vm_ioctl_harvest_accessed(struct kvm *kvm, void __user *argp)
{
	struct kvm_harvest_accessed range;
	struct gtdp_harvest h = {};
	int r;

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	if (copy_from_user(&range, argp, sizeof(range)))
		return -EFAULT;

	if (!gtdp_is_bitmap_aligned(range.gpa, range.bitmap) || !PAGE_ALIGNED(range.size) ||
	    range.gpa + range.size < range.gpa || range.flags ||
	    range.as_id >= kvm_arch_nr_memslot_as_ids(kvm) ||
	    memchr_inv(range.reserved, 0, sizeof(range.reserved)))
		return -EINVAL;

	h.kvm = kvm;
	h.as_id = range.as_id;
	range.accessed = 0;
	r = gtdp_harvest(&h, &range);

	/* A CPU sets the bit of a page anew only if it does not have it in its TLB. */
	if (h.flush)
		kvm_flush_remote_tlbs(kvm);

	if (copy_to_user(argp, &range, sizeof(range)))
		return -EFAULT;

	return r;
}

int gtdp_alloc_notes(struct kvm_memory_slot *slot)
{
	slot->arch.gtdp_notes = __vcalloc(GTDP_READERS * gtdp_note_words(slot),
					  sizeof(*slot->arch.gtdp_notes), GFP_KERNEL_ACCOUNT);
	return slot->arch.gtdp_notes ? 0 : -ENOMEM;
}
