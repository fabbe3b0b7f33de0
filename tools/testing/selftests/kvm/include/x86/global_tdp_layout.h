/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memslots in many arrangements over one piece of host memory: next to each
 * other, with holes, at several guest physical addresses at once, in both
 * address spaces, read-only, at the end of what a vCPU can reach and beyond.
 */
#ifndef SELFTEST_KVM_GLOBAL_TDP_LAYOUT_H
#define SELFTEST_KVM_GLOBAL_TDP_LAYOUT_H

#include "kvm_util.h"
#include "global_tdp.h"

#define GTDP_MAX_PIECES		8
#define GTDP_MAX_AREAS		4
#define GTDP_NR_LAYOUTS		7

/* Guest physical addresses for memslots of layouts. */
struct gtdp_area {
	u64 gpa;
	u64 size;
	/* Where the guest has the part of it that vCPUs can reach. */
	u64 gva;
};

struct gtdp_areas {
	/* The guest physical address from which on no vCPU reaches anything. */
	u64 end;
	/* Address spaces, of which the second is SMM's. */
	int nr_as;
	int nr;
	struct gtdp_area areas[GTDP_MAX_AREAS];
};

/* A memslot; parts of memory are counted in pages. */
struct gtdp_piece {
	int as_id;
	u32 slot;
	u32 flags;
	u64 gpa;
	u64 gva;
	u64 first;
	u64 nr;
	/* How many of them vCPUs can reach. */
	u64 nr_reached;
};

struct gtdp_layout {
	int kind;
	int nr;
	struct gtdp_piece pieces[GTDP_MAX_PIECES];
};

extern const char * const gtdp_layout_names[GTDP_NR_LAYOUTS];

u64 gtdp_reach(struct kvm_vm *vm);
void gtdp_areas_init(struct gtdp_areas *areas, struct kvm_vm *vm, u64 size);
void gtdp_enter_smm(struct kvm_vcpu *vcpu);

void gtdp_layout_choose(struct gtdp_layout *layout, const struct gtdp_areas *areas,
			struct kvm_random_state *rng, u64 nr_pages);
bool gtdp_piece_move(struct gtdp_layout *layout, struct gtdp_piece *piece,
		     const struct gtdp_areas *areas, struct kvm_random_state *rng);
void gtdp_piece_set(struct kvm_vm *vm, struct gtdp_piece *piece, void *hva);
void gtdp_piece_delete(struct kvm_vm *vm, struct gtdp_piece *piece);
struct kvm_populate_memory gtdp_piece_populate(struct kvm_vm *vm, struct gtdp_piece *piece);

#endif /* SELFTEST_KVM_GLOBAL_TDP_LAYOUT_H */
