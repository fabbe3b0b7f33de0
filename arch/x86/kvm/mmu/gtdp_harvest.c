// SPDX-License-Identifier: GPL-2.0
/*
 * Which pages a guest has accessed, on behalf of Global TDP: CPUs say so in the Accessed
 * bits of the TDP page tables, for nothing.  Whoever records what a guest needs first, to
 * have it mapped the next time, need not have it fault on each page.
 *
 * The host reads the same bits, when it ages memory, and whoever reads a bit clears it.  So
 * each of the two leaves a note to the other, in a bitmap of the memslot, before it clears
 * a bit, and looks for notes after it has read the bits: whoever finds a bit clear finds
 * the note.  And it leaves the note again afterwards: the other one may have taken it, and
 * the guest may have accessed the page anew, before the bit was cleared.  An SPTE that is
 * zapped leaves a note, too.
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

/* Words per call of copy_to_user(), i.e. 16MiB: as many as may be on the stack. */
#define GTDP_HARVEST_WORDS	64

/*
 * Regions whose SPTEs are read per acquisition of mmu_lock.  If all are of 4KiB pages that
 * have been accessed, that takes some 80,000 instructions.
 */
#define GTDP_HARVEST_REGIONS	8

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

	/* All is zapped as the VMM ends, but nobody is left to harvest it. */
	if (!atomic_read(&kvm->mm->mm_users))
		return;

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

/* If it has changed meanwhile, it was accessed, too, and may be told again. */
static void gtdp_clear_accessed(u64 *sptep, u64 spte)
{
	try_cmpxchg64(sptep, &spte, spte & ~shadow_accessed_mask);
}

/* Harvest 4KiB SPTEs from @sptep on: those of [@gfn, @end), of one word. */
static bool gtdp_harvest_word(const struct kvm_memory_slot *slot, u64 *sptep, gfn_t gfn,
			      gfn_t end)
{
	const unsigned int first = gfn % BITS_PER_U64;
	u64 sptes[BITS_PER_U64], bits = 0, left;
	unsigned int i, nr = end - gfn;

	for (i = 0; i < nr; i++) {
		sptes[i] = READ_ONCE(sptep[i]);
		bits |= (u64)gtdp_is_accessed(sptes[i]) << i;
	}

	if (!bits)
		return false;

	atomic64_or(bits << first, gtdp_note(slot, GTDP_HARVESTER, gfn));
	atomic64_or(bits << first, gtdp_note(slot, GTDP_HOST, gfn));
	for (left = bits; left; left &= left - 1)
		gtdp_clear_accessed(sptep + __ffs64(left), sptes[__ffs64(left)]);

	if (unlikely(~atomic64_read(gtdp_note(slot, GTDP_HOST, gfn)) & bits << first))
		atomic64_or(bits << first, gtdp_note(slot, GTDP_HOST, gfn));

	return true;
}

static bool gtdp_harvest_table(const struct kvm_memory_slot *slot, u64 *spt, gfn_t gfn,
			       gfn_t end)
{
	bool accessed = false;
	gfn_t next;

	for ( ; gfn < end; gfn = next) {
		next = gtdp_next_word(gfn, end);
		accessed |= gtdp_harvest_word(slot, spt + gfn % SPTE_ENT_PER_PAGE, gfn, next);
	}

	return accessed;
}

/* What was accessed of a huge page is all of it. */
static bool gtdp_harvest_huge(const struct kvm_memory_slot *slot, struct tdp_iter *iter)
{
	if (!gtdp_is_accessed(iter->old_spte))
		return false;

	gtdp_leave_notes(slot, GTDP_HARVESTER, iter->gfn, iter->level);
	gtdp_leave_notes(slot, GTDP_HOST, iter->gfn, iter->level);
	gtdp_clear_accessed(rcu_dereference(iter->sptep), iter->old_spte);
	gtdp_leave_notes(slot, GTDP_HOST, iter->gfn, iter->level);
	return true;
}

static bool gtdp_harvest_root(struct kvm *kvm, struct kvm_mmu_page *root,
			      const struct kvm_memory_slot *slot, gfn_t start, gfn_t end)
{
	bool accessed = false;
	struct tdp_iter iter;

	for_each_tdp_pte_min_level(iter, kvm, root, PG_LEVEL_2M, start, end) {
		if (!is_shadow_present_pte(iter.old_spte))
			continue;

		if (is_last_spte(iter.old_spte, iter.level))
			accessed |= gtdp_harvest_huge(slot, &iter);
		else if (iter.level == PG_LEVEL_2M)
			accessed |= gtdp_harvest_table(slot, spte_to_child_sp(iter.old_spte)->spt,
						       max(start, iter.gfn),
						       gtdp_region_end(iter.gfn, end));
	}

	return accessed;
}

/*
 * Turn the Accessed bits of [@start, @end) into notes.  A page table that is zapped meanwhile
 * stays, under RCU, and its SPTEs are changed by compare-exchange: each tells of an access
 * here or, by a note, to whoever zaps it.
 */
static bool gtdp_harvest_sptes(struct kvm *kvm, const struct kvm_memory_slot *slot,
			       gfn_t start, gfn_t end)
{
	struct kvm_mmu_page *root;
	bool accessed = false;

	guard(read_lock)(&kvm->mmu_lock);
	guard(rcu)();

	list_for_each_entry_rcu(root, &kvm->arch.tdp_mmu_roots, link) {
		if (kvm_mmu_page_as_id(root) == slot->as_id)
			accessed |= gtdp_harvest_root(kvm, root, slot, start, end);
	}

	return accessed;
}

/* The same for some of @range, from @gfn on, which moves forward. */
static int gtdp_harvest_batch(struct kvm *kvm, const struct kvm_harvest_accessed *range,
			      gfn_t *gfn, gfn_t end, bool *accessed)
{
	const struct kvm_memory_slot *slot;

	guard(srcu)(&kvm->srcu);

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	slot = gtdp_find_slot(__kvm_memslots(kvm, range->as_id), gfn, end, true);
	if (!slot)
		return 0;

	end = min3(end, gtdp_slot_end(slot),
		   *gfn + GTDP_HARVEST_REGIONS * KVM_PAGES_PER_HPAGE(PG_LEVEL_2M));
	if (slot->arch.gtdp_notes)
		*accessed |= gtdp_harvest_sptes(kvm, slot, *gfn, end);
	*gfn = end;
	return 0;
}

/* Take the notes of [@start, @end); bit 0 is that of @start.  Returns how many there were. */
static u64 gtdp_take_notes(struct kvm *kvm, int as_id, gfn_t start, gfn_t end, u64 *bits)
{
	struct kvm_memslot_iter iter;
	u64 taken, nr = 0;
	gfn_t gfn, last;

	guard(srcu)(&kvm->srcu);

	kvm_for_each_memslot_in_gfn_range(&iter, __kvm_memslots(kvm, as_id), start, end) {
		if (!iter.slot->arch.gtdp_notes)
			continue;

		last = min(end, gtdp_slot_end(iter.slot));
		for (gfn = max(start, iter.slot->base_gfn); gfn < last;
		     gfn = gtdp_next_word(gfn, last)) {
			taken = gtdp_take_note(iter.slot, GTDP_HARVESTER, gfn, last);
			bits[(gfn - start) / BITS_PER_U64] |= taken;
			nr += hweight64(taken);
		}
	}

	return nr;
}

/* Nobody has got to know of these: they are for the next call. */
static void gtdp_put_back(struct kvm *kvm, int as_id, gfn_t start, gfn_t end, const u64 *bits)
{
	struct kvm_memory_slot *slot;
	gfn_t gfn;

	guard(srcu)(&kvm->srcu);

	for (gfn = start; gfn < end; gfn++) {
		if (!(bits[(gfn - start) / BITS_PER_U64] & BIT_ULL(gfn % BITS_PER_U64)))
			continue;

		slot = __gfn_to_memslot(__kvm_memslots(kvm, as_id), gfn);
		if (slot)
			kvm_gtdp_accessed(slot, gfn, PG_LEVEL_4K);
	}
}

/* Tell of a part of @range, which moves forward, before @last. */
static int gtdp_tell(struct kvm *kvm, struct kvm_harvest_accessed *range, gfn_t last,
		     bool *accessed)
{
	const gfn_t start = gpa_to_gfn(range->gpa);
	const gfn_t end = min(last, start + GTDP_HARVEST_WORDS * BITS_PER_U64);
	const unsigned int words = DIV_ROUND_UP(end - start, BITS_PER_U64);
	u64 bits[GTDP_HARVEST_WORDS] = {}, taken;

	taken = gtdp_take_notes(kvm, range->as_id, start, end, bits);
	*accessed |= taken;
	if (copy_to_user(u64_to_user_ptr(range->bitmap), bits, words * sizeof(u64))) {
		gtdp_put_back(kvm, range->as_id, start, end, bits);
		return -EFAULT;
	}

	atomic64_add(taken, &kvm->stat.tdp_harvested);
	range->accessed += taken << PAGE_SHIFT;
	range->bitmap += words * sizeof(u64);
	range->gpa = gfn_to_gpa(end);
	range->size -= gfn_to_gpa(end - start);
	return 0;
}

static int gtdp_harvest(struct kvm *kvm, struct kvm_harvest_accessed *range, bool *accessed)
{
	gfn_t gfn = gpa_to_gfn(range->gpa), end = gfn + (range->size >> PAGE_SHIFT);
	int r = 0, err;

	while (gfn < end && !r) {
		cond_resched();
		r = signal_pending(current) ? -EINTR :
		    gtdp_harvest_batch(kvm, range, &gfn, end, accessed);
	}

	/* Tell of what was scanned: signals, however many, don't keep it from getting on. */
	if (gfn < end)
		end = round_down(gfn, BITS_PER_U64);

	/*
	 * Whoever has zapped an SPTE that was not found anymore may be about to leave
	 * the note, but does so before it drops mmu_lock: wait for that.
	 */
	write_lock(&kvm->mmu_lock);
	write_unlock(&kvm->mmu_lock);

	while (gpa_to_gfn(range->gpa) < end) {
		cond_resched();
		err = gtdp_tell(kvm, range, end, accessed);
		if (err)
			return err;
	}

	return r;
}

int kvm_vm_ioctl_harvest_accessed(struct kvm *kvm, void __user *argp)
{
	struct kvm_harvest_accessed __user *user_range = argp;
	struct kvm_harvest_accessed range;
	bool accessed = false;
	int r;

	if (!kvm_gtdp_has(kvm, KVM_GLOBAL_TDP_HARVEST))
		return -EOPNOTSUPP;

	if (copy_from_user(&range, user_range, sizeof(range)))
		return -EFAULT;

	if (!gtdp_is_bitmap_aligned(range.gpa, range.bitmap) || !PAGE_ALIGNED(range.size) ||
	    range.gpa + range.size < range.gpa || range.flags ||
	    range.as_id >= kvm_arch_nr_memslot_as_ids(kvm) ||
	    memchr_inv(range.reserved, 0, sizeof(range.reserved)))
		return -EINVAL;

	/* Take nothing if the result can't be told. */
	range.accessed = 0;
	if (put_user(range.accessed, &user_range->accessed))
		return -EFAULT;

	r = gtdp_harvest(kvm, &range, &accessed);

	/*
	 * A CPU sets the bit of a page anew only if it does not have the page in its TLB, as
	 * it may have if the host, too, has cleared the bit, which does not flush.
	 */
	if (accessed)
		kvm_flush_remote_tlbs(kvm);

	if (copy_to_user(user_range, &range, sizeof(range)))
		return -EFAULT;

	return r;
}

int gtdp_alloc_notes(struct kvm_memory_slot *slot)
{
	slot->arch.gtdp_notes = __vcalloc(GTDP_READERS * gtdp_note_words(slot),
					  sizeof(*slot->arch.gtdp_notes), GFP_KERNEL_ACCOUNT);
	return slot->arch.gtdp_notes ? 0 : -ENOMEM;
}
