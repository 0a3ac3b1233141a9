//! Verifies the identity that an executor claims: a known incarnation, or the successor of an executor whose data directory it has.

use std::time::Duration;

use rondel_core::{AppId, ExecutorId};
use rondel_proto::v1;
use rondel_store::StoreError;
use rondel_store::cluster::ExecutorProof;
use sha2::{Digest, Sha256};

use crate::dispatch::results::reporter::SIBLING_COUNT_MAX;
use crate::node::Shared;

/// An executor without a secret is live if it was heard within this many heartbeats.
const LIVING_HEARTBEATS: u32 = 5;

/// Maximum number of predecessors in a lineage; other successors of these predecessors are added without this limit.
const LINEAGE_LEN_MAX: usize = 16;

/// The stored digest of an executor's secret; `None` if it has no secret.
pub(super) fn secret_hash(secret: &[u8]) -> Option<String> {
    let hex = |digest: &[u8]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (!secret.is_empty()).then(|| hex(Sha256::digest(secret).as_slice()))
}

/// The predecessor that a hello names and proves, and the predecessors of that predecessor: the journal may hold results of any of these
/// processes. Without the proof, another executor of the same name is not a predecessor.
///
/// A process that was killed before it was welcomed is not the predecessor of the next process, although the server may have recorded runs under
/// it. The killed process had proved the same predecessor with the same secret, so it is found as another successor of that predecessor.
pub(super) async fn lineage(shared: &Shared, app: AppId, hello: &v1::Hello) -> Result<Vec<ExecutorId>, StoreError> {
    let mut lineage = Vec::new();
    let mut next_ancestor = proven_predecessor(shared, app, hello).await?;
    while let Some(id) = next_ancestor.filter(|id| lineage.len() < LINEAGE_LEN_MAX && !lineage.contains(id)) {
        lineage.push(id);
        let row = shared.store.executor_proof(id).await?.filter(|row| row.app == app);
        next_ancestor = row.and_then(|row| row.predecessor);
    }
    for id in lineage.clone() {
        for sibling in shared.store.executor_successors(id, SIBLING_COUNT_MAX).await? {
            if sibling.get() != hello.incarnation && !lineage.contains(&sibling) {
                lineage.push(sibling);
            }
        }
    }
    Ok(lineage)
}

async fn proven_predecessor(shared: &Shared, app: AppId, hello: &v1::Hello) -> Result<Option<ExecutorId>, StoreError> {
    if hello.predecessor <= 0 || hello.predecessor == hello.incarnation {
        return Ok(None);
    }
    let id = ExecutorId::new(hello.predecessor);
    let proof = shared.store.executor_proof(id).await?;
    let is_proven = match check_proof(app, proof.as_ref(), &hello.predecessor_secret) {
        ProofResult::Proven => true,
        ProofResult::UnlessLiving => !is_living(shared, id).await?,
        ProofResult::Unproven => false,
    };
    if !is_proven {
        tracing::warn!(
            executor = hello.name,
            app = hello.app,
            predecessor_id = %id,
            "an executor names a predecessor without proof; it counts as a second executor"
        );
    }
    Ok(is_proven.then_some(id))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProofResult {
    Proven,
    /// The predecessor has no secret: an executor of an older SDK can be succeeded once it is gone.
    UnlessLiving,
    Unproven,
}

fn check_proof(app: AppId, stored_proof: Option<&ExecutorProof>, shown_secret: &[u8]) -> ProofResult {
    match stored_proof {
        Some(stored_proof) if stored_proof.app == app => match &stored_proof.secret_hash {
            None => ProofResult::UnlessLiving,
            Some(wanted) if secret_hash(shown_secret).as_ref() == Some(wanted) => ProofResult::Proven,
            Some(_) => ProofResult::Unproven,
        },
        _ => ProofResult::Unproven,
    }
}

/// Whether the executor is online here, or a node has an open session of it and has heard it recently.
async fn is_living(shared: &Shared, id: ExecutorId) -> Result<bool, StoreError> {
    let now = shared.clock.now();
    let silence: Duration = shared.config.heartbeat.saturating_mul(LIVING_HEARTBEATS);
    if shared.registry.is_online(id) {
        return Ok(true);
    }
    let sessions = shared.store.sessions(now - silence).await?;
    Ok(sessions.iter().any(|session| session.executor == id && session.is_open()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_predecessor_is_proven_by_its_secret_and_in_its_app_alone() {
        let app = AppId::new(1);
        let known = |app, secret: &[u8]| ExecutorProof { app, secret_hash: secret_hash(secret), predecessor: None };
        let (with, without) = (known(app, b"secret"), known(app, b""));
        for (known, shown, wanted) in [
            (Some(&with), &b"secret"[..], ProofResult::Proven),
            (Some(&with), b"Secret", ProofResult::Unproven),
            (Some(&with), b"", ProofResult::Unproven),
            (Some(&without), b"", ProofResult::UnlessLiving),
            (Some(&without), b"secret", ProofResult::UnlessLiving),
            (Some(&known(AppId::new(2), b"secret")), b"secret", ProofResult::Unproven),
            (Some(&known(AppId::new(2), b"")), b"", ProofResult::Unproven),
            (None, b"secret", ProofResult::Unproven),
        ] {
            assert_eq!(check_proof(app, known, shown), wanted, "{known:?} {shown:?}");
        }
    }
}
