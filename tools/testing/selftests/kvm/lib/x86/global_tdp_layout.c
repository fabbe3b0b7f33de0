// SPDX-License-Identifier: GPL-2.0
/*
 * Layouts of memslots, see global_tdp_layout.h.
 */
#include "test_util.h"
#include "kvm_util.h"
#include "processor.h"
#include "global_tdp_layout.h"

/* Slots of layouts, in each address space. */
#define FIRST_SLOT	(GTDP_SLOT + 16)

/* Where the guest has the areas that have other addresses than its own. */
#define AREA_GVA	BIT_ULL(45)
#define AREA_DISTANCE	SZ_1G

#define HIGH_SIZE	SZ_64M
#define BEYOND_SIZE	SZ_32M
#define TRIES		32

/* What a kind of layout has. */
enum {
	CUT		= BIT(0),	/* several slots, next to each other */
	HOLES		= BIT(1),	/* and not quite next to each other */
	ALIASES		= BIT(2),	/* at several guest physical addresses */
	BOTH		= BIT(3),	/* in both address spaces */
	READONLY	= BIT(4),
	HIGH		= BIT(5),	/* at the end of what can be reached */
};

static const unsigned int kinds[GTDP_NR_LAYOUTS] = {
	0, CUT, CUT | HOLES, ALIASES, CUT | BOTH, CUT | ALIASES | READONLY, CUT | HIGH,
};

const char * const gtdp_layout_names[GTDP_NR_LAYOUTS] = {
	"one slot", "adjacent", "holes", "aliases", "both spaces", "read-only", "high",
};

static u64 below(struct kvm_random_state *rng, u64 end)
{
	return kvm_random_u64(rng) % end;
}

/*
 * The first guest physical address that page tables don't have an entry for,
 * which can be less than what CPUs can address.
 */
u64 gtdp_reach(struct kvm_vm *vm)
{
	return BIT_ULL(kvm_cpu_property(X86_PROPERTY_GUEST_MAX_PHY_ADDR) ?: vm->pa_bits);
}

/* The end of what a vCPU can use as memory. */
static u64 usable_end(struct kvm_vm *vm)
{
	/*
	 * The selftests stay below the HyperTransport area.  That of the older
	 * families is below 1T, and there is usable address space above it.
	 */
	if (host_cpu_is_amd && this_cpu_family() < 0x17 && gtdp_reach(vm) > BIT_ULL(40))
		return gtdp_reach(vm);

	return align_down((vm->max_gfn + 1) << PAGE_SHIFT, SZ_2M);
}

static void add_area(struct gtdp_areas *areas, struct kvm_vm *vm, u64 gpa, u64 size)
{
	struct gtdp_area *area = &areas->areas[areas->nr];
	u64 reached = gpa < areas->end ? min(size, areas->end - gpa) : 0;
	u64 max_gfn = vm->max_gfn;

	*area = (struct gtdp_area) {
		.gpa = gpa,
		.size = size,
		.gva = AREA_GVA + areas->nr * AREA_DISTANCE,
	};
	areas->nr++;

	/* The library does not expect page tables for what it does not use. */
	vm->max_gfn = (areas->end >> PAGE_SHIFT) - 1;
	if (reached)
		virt_map_level(vm, area->gva, gpa, reached, PG_LEVEL_2M);
	vm->max_gfn = max_gfn;
}

/*
 * Have the guest map all areas of a VM: some at GTDP_GPA, some at the end of
 * what can be reached and, where KVM has memslots there, beyond it.  The latter
 * includes what would be at GTDP_GPA if the higher address bits were ignored.
 */
void gtdp_areas_init(struct gtdp_areas *areas, struct kvm_vm *vm, u64 size)
{
	const u64 limit = BIT_ULL(vm->pa_bits), turn = BIT_ULL(48);
	u64 end = usable_end(vm), beyond = 0;

	*areas = (struct gtdp_areas) {
		.end = end,
		.nr_as = kvm_check_cap(KVM_CAP_MULTI_ADDRESS_SPACE) > 1 ? 2 : 1,
		.nr = 1,
		.areas[0] = { .gpa = GTDP_GPA, .size = size, .gva = GTDP_GPA },
	};

	if (end == gtdp_reach(vm) && end < limit)
		beyond = BEYOND_SIZE;
	add_area(areas, vm, end - HIGH_SIZE, HIGH_SIZE + beyond);
	if (end > turn)
		add_area(areas, vm, turn - BEYOND_SIZE, 2 * BEYOND_SIZE);
	if (beyond)
		add_area(areas, vm, end + GTDP_GPA, size);
}

/* From now on the vCPU uses address space 1, and is otherwise as it was. */
void gtdp_enter_smm(struct kvm_vcpu *vcpu)
{
	struct kvm_vcpu_events events;

	vcpu_events_get(vcpu, &events);
	events.smi.smm = 1;
	events.flags |= KVM_VCPUEVENT_VALID_SMM;
	vcpu_events_set(vcpu, &events);
}

static bool is_free(const struct gtdp_layout *layout, const struct gtdp_piece *self,
		    u64 gpa)
{
	const struct gtdp_piece *piece;

	for (piece = layout->pieces; piece < layout->pieces + layout->nr; piece++) {
		if (piece != self && piece->as_id == self->as_id &&
		    gpa < piece->gpa + piece->nr * PAGE_SIZE &&
		    gpa + self->nr * PAGE_SIZE > piece->gpa)
			return false;
	}

	return true;
}

static bool put(struct gtdp_layout *layout, struct gtdp_piece *piece,
		const struct gtdp_areas *areas, const struct gtdp_area *area, u64 gpa)
{
	u64 size = piece->nr * PAGE_SIZE;

	if (gpa < area->gpa || gpa + size > area->gpa + area->size ||
	    !is_free(layout, piece, gpa))
		return false;

	piece->gpa = gpa;
	piece->gva = area->gva + (gpa - area->gpa);
	piece->nr_reached = 0;
	if (gpa < areas->end)
		piece->nr_reached = min(piece->nr, (areas->end - gpa) >> PAGE_SHIFT);
	return true;
}

static bool put_somewhere(struct gtdp_layout *layout, struct gtdp_piece *piece,
			  const struct gtdp_areas *areas, struct kvm_random_state *rng,
			  const struct gtdp_area *area)
{
	u64 gpa, room;
	int i;

	if (area->size < piece->nr * PAGE_SIZE)
		return false;

	room = (area->size / PAGE_SIZE) - piece->nr + 1;
	for (i = 0; i < TRIES; i++) {
		gpa = area->gpa + below(rng, room) * PAGE_SIZE;
		/* Let huge pages be possible, and the ends of an area be used. */
		if (!below(rng, 4))
			gpa = area->gpa + (room - 1) * PAGE_SIZE;
		else if (below(rng, 2))
			gpa = align_down(gpa, SZ_2M) + piece->first * PAGE_SIZE % SZ_2M;
		if (put(layout, piece, areas, area, gpa))
			return true;
	}

	return false;
}

static const struct gtdp_area *any_area(const struct gtdp_areas *areas,
					struct kvm_random_state *rng, unsigned int kind)
{
	if (!(kind & HIGH) || areas->nr == 1)
		return areas->areas;

	return &areas->areas[1 + below(rng, areas->nr - 1)];
}

/* Choose another address for a memslot; false if there is no room. */
bool gtdp_piece_move(struct gtdp_layout *layout, struct gtdp_piece *piece,
		     const struct gtdp_areas *areas, struct kvm_random_state *rng)
{
	const struct gtdp_area *area = any_area(areas, rng, kinds[layout->kind]);

	return put_somewhere(layout, piece, areas, rng, area);
}

/* Have all of the memory, but for the holes, in slots. */
static void add_copy(struct gtdp_layout *layout, const struct gtdp_areas *areas,
		     struct kvm_random_state *rng, u64 nr_pages, unsigned int kind,
		     int as_id)
{
	const struct gtdp_area *area = any_area(areas, rng, kind);
	u64 first = 0, gap, next = 0, parts, nr;
	struct gtdp_piece *piece;

	for (parts = kind & CUT ? 2 + below(rng, 2) : 1; parts && first < nr_pages; parts--) {
		if (layout->nr == GTDP_MAX_PIECES)
			return;

		nr = nr_pages - first;
		if (parts > 1)
			nr = min(nr, 1 + below(rng, max_t(u64, 2 * nr / parts, 1)));
		gap = kind & HOLES ? below(rng, 2) * (1 + below(rng, 64)) : 0;

		piece = &layout->pieces[layout->nr];
		*piece = (struct gtdp_piece) {
			.as_id = as_id,
			.slot = as_id << 16 | (FIRST_SLOT + layout->nr),
			.first = first,
			.nr = nr,
			.flags = kind & READONLY && below(rng, 2) ? KVM_MEM_READONLY : 0,
		};
		if (!below(rng, 6))
			piece->flags |= KVM_MEM_LOG_DIRTY_PAGES;

		/* Next to the one before, if possible. */
		layout->nr++;
		if (!(next && put(layout, piece, areas, area, next + gap * PAGE_SIZE)) &&
		    !put_somewhere(layout, piece, areas, rng, area))
			layout->nr--;
		else
			next = piece->gpa + nr * PAGE_SIZE;

		/* A hole in the memory, too, or a part of it in two slots. */
		first += nr;
		if (kind & HOLES && below(rng, 2))
			first += below(rng, 64);
		else if (kind & ALIASES)
			first -= min(first - 1, below(rng, 64));
	}
}

void gtdp_layout_choose(struct gtdp_layout *layout, const struct gtdp_areas *areas,
			struct kvm_random_state *rng, u64 nr_pages)
{
	unsigned int kind, more;
	int copies, i;

	*layout = (struct gtdp_layout) { .kind = below(rng, GTDP_NR_LAYOUTS) };
	kind = kinds[layout->kind];

	copies = kind & (ALIASES | BOTH | HIGH) ? 2 + below(rng, 2) : 1;
	for (i = 0; i < copies; i++) {
		/* No two copies are alike. */
		more = kind;
		if (i && below(rng, 2))
			more ^= CUT;
		if (i && below(rng, 2))
			more &= ~HIGH;
		add_copy(layout, areas, rng, nr_pages, more,
			 kind & BOTH && areas->nr_as > 1 ? i % 2 : 0);
	}
}

void gtdp_piece_set(struct kvm_vm *vm, struct gtdp_piece *piece, void *hva)
{
	vm_set_user_memory_region(vm, piece->slot, piece->flags, piece->gpa,
				  piece->nr * PAGE_SIZE, hva + piece->first * PAGE_SIZE);
}

void gtdp_piece_delete(struct kvm_vm *vm, struct gtdp_piece *piece)
{
	gtdp_delete_slot(vm, piece->slot);
}

struct kvm_populate_memory gtdp_piece_populate(struct kvm_vm *vm, struct gtdp_piece *piece)
{
	struct kvm_populate_memory sum, range = {
		.gpa = piece->gpa,
		.size = piece->nr * PAGE_SIZE,
		.as_id = piece->as_id,
	};
	int err = gtdp_populate_on(vm, &range, &sum);

	TEST_ASSERT(!err, "KVM_POPULATE_MEMORY at %#llx: %s", range.gpa, strerror(err));
	TEST_ASSERT_EQ(sum.mapped + sum.absent, piece->nr * PAGE_SIZE);
	return sum;
}
