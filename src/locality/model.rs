//! The naive model that the index is tested against: lists of single blocks, searched and shifted in the plainest way.

use super::Tenant;
use crate::prefix::BlockHash;

/// What every tenant holds, block by block.
#[derive(Default)]
pub(super) struct Model {
    tenants: Vec<ModelTenant>,
    claims: Vec<Claim>,
    last_claim: usize,
}

struct ModelTenant {
    tenant: Tenant,
    capacity_blocks: usize,
    /// From the most to the least recently used block.
    order: Vec<BlockHash>,
}

struct Claim {
    id: usize,
    tenant: Tenant,
    chain: Vec<BlockHash>,
}

// === impl Model ===

impl Model {
    pub(super) fn join(&mut self, tenant: Tenant, capacity_blocks: u32) {
        self.tenants.push(ModelTenant { tenant, capacity_blocks: capacity_blocks as usize, order: Vec::new() });
    }

    pub(super) fn leave(&mut self, tenant: Tenant) {
        self.tenants.retain(|held| held.tenant != tenant);
        self.claims.retain(|claim| claim.tenant != tenant);
    }

    pub(super) fn restart(&mut self, old: Tenant, new: Tenant) {
        let capacity = self.tenants.iter().find(|held| held.tenant == old).map(|held| held.capacity_blocks);
        self.leave(old);
        self.join(new, capacity.unwrap() as u32);
    }

    pub(super) fn set_capacity(&mut self, tenant: Tenant, capacity_blocks: u32) {
        if let Some(held) = self.find(tenant) {
            held.capacity_blocks = capacity_blocks as usize;
            held.order.truncate(held.capacity_blocks);
        }
    }

    /// Touches every block of the chain, the last one first.
    pub(super) fn insert(&mut self, tenant: Tenant, chain: &[BlockHash]) {
        if let Some(held) = self.find(tenant) {
            for block in chain.iter().rev() {
                held.order.retain(|held| held != block);
                held.order.insert(0, *block);
            }
            held.order.truncate(held.capacity_blocks);
        }
    }

    pub(super) fn claim(&mut self, tenant: Tenant, chain: &[BlockHash]) -> usize {
        self.last_claim += 1;
        let id = self.last_claim;
        if let Some(held) = self.find(tenant) {
            let chain = chain[..chain.len().min(held.capacity_blocks)].to_vec();
            self.claims.push(Claim { id, tenant, chain });
        }
        id
    }

    pub(super) fn release(&mut self, id: usize) {
        self.claims.retain(|claim| claim.id != id);
    }

    pub(super) fn blocks(&self, tenant: Tenant) -> usize {
        self.tenants.iter().find(|held| held.tenant == tenant).map_or(0, |held| held.order.len())
    }

    pub(super) fn claimed_blocks(&self, tenant: Tenant) -> usize {
        let claims = self.claims.iter().filter(|claim| claim.tenant == tenant);
        claims.flat_map(|claim| &claim.chain).collect::<std::collections::HashSet<_>>().len()
    }

    /// Leading blocks of the chain that the tenant holds, assumed or claimed.
    pub(super) fn matched(&self, tenant: Tenant, chain: &[BlockHash]) -> usize {
        let Some(held) = self.tenants.iter().find(|held| held.tenant == tenant) else { return 0 };
        chain.iter().take_while(|block| held.order.contains(block) || self.is_claimed(tenant, **block)).count()
    }

    /// Leading blocks that are assumed, and leading blocks that are claimed.
    pub(super) fn parts(&self, tenant: Tenant, chain: &[BlockHash]) -> (usize, usize) {
        let Some(held) = self.tenants.iter().find(|held| held.tenant == tenant) else { return (0, 0) };
        let assumed = chain.iter().take_while(|block| held.order.contains(block)).count();
        (assumed, chain.iter().take_while(|block| self.is_claimed(tenant, **block)).count())
    }

    fn is_claimed(&self, tenant: Tenant, block: BlockHash) -> bool {
        self.claims.iter().any(|claim| claim.tenant == tenant && claim.chain.contains(&block))
    }

    fn find(&mut self, tenant: Tenant) -> Option<&mut ModelTenant> {
        self.tenants.iter_mut().find(|held| held.tenant == tenant)
    }
}
