//! Dynamo's own HTTP services of its public crate: the indexer, which answers /query and
//! /query_by_hash, and the selection service, which answers /select and /select_and_reserve.
//!
//!     service indexer|selection PORT
//!
//! Handlers, indexes and scheduler are the crate's. Settings are the defaults of `python -m
//! dynamo.indexer` and `python -m dynamo.select_service`, and so is the runtime. It writes no
//! log, and has no /metrics: both would only cost it time.

use std::sync::Arc;

use anyhow::{bail, Context};
use dynamo_kv_router::services::indexer::{self, IndexerConfig};
use dynamo_kv_router::services::selection::{self, SelectionCacheConfig, SelectionServiceBuilder};
use dynamo_kv_router::plugins::RouterPluginRegistry;
use dynamo_kv_router::{KvRouterConfig, WorkerSelectionPolicy, WorkerType};

/// How many threads apply events, as in both services' command lines.
const INDEXER_THREADS: usize = 4;

async fn indexer(port: u16) -> anyhow::Result<()> {
    indexer::run_server(IndexerConfig {
        block_size: None, // of each worker's registration
        port,
        threads: INDEXER_THREADS,
        workers: None,
        model_name: "default".into(),
        routing_group: "default".into(),
        peers: None,
        access_log: None,
        trace_id_header: http::HeaderName::from_static("x-trace-id"),
        access_log_local_time: false,
    })
    .await
}

async fn selection(port: u16) -> anyhow::Result<()> {
    let registry = RouterPluginRegistry::default().with_default_factory(Arc::new(|config, role, _| {
        WorkerSelectionPolicy::reference(config.clone(), role.default_selector_label())
    }));
    let service = SelectionServiceBuilder::new(KvRouterConfig::default(), WorkerType::Aggregated, registry)
        .indexer_threads(INDEXER_THREADS)
        .selection_cache(SelectionCacheConfig::default())
        .build()
        .await?;
    selection::run_server(port, service).await
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, port] = args.as_slice() else { bail!("usage: service indexer|selection PORT") };
    let port = port.parse().context("the port")?;
    let runtime = tokio::runtime::Runtime::new()?;
    match what.as_str() {
        "indexer" => runtime.block_on(indexer(port)),
        "selection" => runtime.block_on(selection(port)),
        other => bail!("{other:?} is neither indexer nor selection"),
    }
}
