//! Executors that open two streams to one server at the same time, by two of its URLs.

use std::sync::Arc;

use rondel_admin::EngineConfig;
use rondel_store::{MemStore, Result, Store};
use tokio::sync::Barrier;
use tonic::Code;

use super::world::{World, hello, store};

/// A store that holds back each first session until a second one is to be stored.
#[derive(Debug)]
struct PairedStore {
    inner: Arc<MemStore>,
    pair: Barrier,
}

impl PairedStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "open_session" {
            self.pair.wait().await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(PairedStore);

/// Neither hello lists the runs that come on the stream of the other one, so only one of them opens a stream.
#[tokio::test]
async fn of_two_hellos_at_the_same_time_one_is_refused() {
    let inner = store();
    let paired = Arc::new(PairedStore { inner: Arc::clone(&inner), pair: Barrier::new(2) });
    let world = World::start_behind(inner, paired as Arc<dyn Store>, EngineConfig::default()).await;
    let dial = || Box::pin(world.dial(Some(&world.token), hello("a", 42)));
    let (one, other) = tokio::join!(dial(), dial());
    let refused: Vec<Code> =
        [&one, &other].into_iter().filter_map(|line| line.as_ref().err()).map(|status| status.code()).collect();
    assert_eq!(refused, [Code::Unavailable]);
    drop((one, other));
    world.die().await;
}
