//! Dynamo's indexers under the shapes of `kvbench memory`: the same keys,
//! chains, holders, forks and events, and CPU time of the thread that does the work.
//!
//!     cargo run --release -- [blocks] [rounds] [holders,...]
//!
//! Events are made before they are timed: a million blocks in events of one take
//! some gigabytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer, WorkerTask};
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};

/// Counts what is allocated.
struct Counting;
static IN_USE: AtomicUsize = AtomicUsize::new(0);
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        IN_USE.fetch_add(l.size(), Ordering::Relaxed);
        System.alloc(l)
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        IN_USE.fetch_sub(l.size(), Ordering::Relaxed);
        System.dealloc(p, l)
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        IN_USE.fetch_add(n, Ordering::Relaxed);
        IN_USE.fetch_sub(l.size(), Ordering::Relaxed);
        System.realloc(p, l, n)
    }
}
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn cpu(clock: libc::clockid_t) -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut t) }, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
fn thread_cpu() -> Duration {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}
fn process_cpu() -> Duration {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn spread(mut v: Vec<f64>) -> String {
    v.sort_by(|a, b| a.total_cmp(b));
    let at = |q: f64| {
        let x = q * (v.len() - 1) as f64;
        let i = x as usize;
        if i + 1 == v.len() { v[i] } else { v[i] + (x - i as f64) * (v[i + 1] - v[i]) }
    };
    format!("{:.2} ({:.2}-{:.2})", at(0.5), at(0.25), at(0.75))
}

/// Chains of keys that are functions of their places, as corpus.go has them.
struct Corpus {
    seed: u64,
    chains: usize,
    depth: usize,
}
impl Corpus {
    fn new(seed: u64, keys: usize, depth: usize) -> Self {
        Corpus { seed, chains: (keys / depth).max(1), depth }
    }
    fn key(&self, chain: usize, block: usize) -> u64 {
        let n = ((chain as u64) << 32 | block as u64).wrapping_mul(0x9e3779b97f4a7c15);
        let mut z = self.seed.wrapping_add(n);
        z = (z ^ z >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
        z ^ z >> 31
    }
    fn chain(&self, chain: usize) -> Vec<LocalBlockHash> {
        (0..self.depth).map(|i| LocalBlockHash(self.key(chain, i))).collect()
    }
    /// Events that store blocks of a chain, at most n in each.
    fn stored(&self, worker: u64, chain: usize, to: usize, n: usize, out: &mut Vec<RouterEvent>) {
        for from in (0..to).step_by(n) {
            let blocks: Vec<u64> = (from..to.min(from + n)).map(|i| self.key(chain, i)).collect();
            let parent = (from > 0).then(|| self.key(chain, from - 1));
            out.push(store(worker, parent, &blocks));
        }
    }
}

fn event(worker: u64, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(worker, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}
fn store(worker: u64, parent: Option<u64>, blocks: &[u64]) -> RouterEvent {
    event(
        worker,
        KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(ExternalSequenceBlockHash),
            start_position: None,
            blocks: blocks
                .iter()
                .map(|&k| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(k),
                    tokens_hash: LocalBlockHash(k),
                    mm_extra_info: None,
                })
                .collect(),
        }),
    )
}

const FORK_EVERY: usize = 16;

/// How many blocks of a chain a holder has.
fn held(shape: &str, holders: usize, h: usize, n: usize) -> usize {
    if shape != "stairs" || h == 0 {
        return n;
    }
    (n * (holders - h) / holders / FORK_EVERY).max(1) * FORK_EVERY
}

/// The events that make an index of a shape, chain by chain.
fn fill(c: &Corpus, shape: &str, holders: usize, mut apply: impl FnMut(RouterEvent)) {
    let mut events = Vec::new();
    for chain in 0..c.chains {
        for h in 0..holders {
            c.stored(h as u64, chain, held(shape, holders, h, c.depth), 1024, &mut events);
        }
        if shape != "whole" {
            // A sibling hangs on a block that its pod has, or it would be dropped. They
            // come from the end: a split leaves the front part the capacity of the
            // whole, which from front to back makes 12 GB of a million blocks.
            let h = chain % holders;
            for at in (FORK_EVERY..held(shape, holders, h, c.depth)).step_by(FORK_EVERY).rev() {
                events.push(store(h as u64, Some(c.key(chain, at - 1)), &[c.key(chain, c.depth + at)]));
            }
        }
        events.drain(..).for_each(&mut apply);
    }
}

/// An index as it runs in service, with one worker thread.
fn filled_pool(c: &Corpus, shape: &str, holders: usize) -> ThreadPoolIndexer<ConcurrentRadixTreeCompressed> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pool = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 64);
    let mut queued = 0;
    fill(c, shape, holders, |e| {
        pool.enqueue_event(e).unwrap();
        queued += 1;
        if queued % 1024 == 0 {
            runtime.block_on(pool.flush_and_wait()).unwrap();
        }
    });
    runtime.block_on(pool.flush_and_wait()).unwrap();
    pool
}

/// Runs the events through a tree's own worker loop on this thread.
fn run_events(tree: &ConcurrentRadixTreeCompressed, events: Vec<RouterEvent>) -> Duration {
    let (send, receive) = flume::unbounded();
    for e in events {
        send.send(WorkerTask::Event(e)).unwrap();
    }
    drop(send);
    let begin = thread_cpu();
    tree.worker(receive, None).unwrap();
    thread_cpu() - begin
}

/// Each index has a process of its own, so that none finds the heap of another.
fn find(blocks: usize, rounds: usize, holders: &[usize]) {
    println!("### Find: us of CPU, median (quartiles)\n");
    println!("| chain | holders | shape | CRTC cold | CRTC hot | RadixTree cold | RadixTree hot |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let program = std::env::current_exe().unwrap();
    for &h in holders {
        for shape in ["whole", "forks", "stairs"] {
            for n in [128usize, 1024, 8192] {
                let args = [blocks, rounds, h, n].map(|v| v.to_string());
                let status = std::process::Command::new(&program).arg("find").arg(shape).args(args).status().unwrap();
                assert!(status.success());
            }
        }
    }
}

fn find_one(shape: &str, blocks: usize, rounds: usize, h: usize, n: usize) {
    let c = Corpus::new(5, blocks, n);
    let mut row = format!("| {n} blocks | {h} | {shape} |");
    let chains: Vec<_> = (0..c.chains).map(|i| c.chain(i)).collect();
    let per_sample = ((1usize << 20) / n).max(1);
    let mut random = 88172645463325252u64;
    let mut next = move |m: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % m as u64) as usize
    };
    {
        let pool = filled_pool(&c, shape, h);
        let tree = pool.backend();
        let got = tree.find_matches_impl(&chains[0], false);
        for w in 0..h {
            let want = held(shape, h, w, n) as u32;
            assert_eq!(got.scores[&WorkerWithDpRank::new(w as u64, 0)], want, "{shape} {h} {n} worker {w}");
        }
        for among in [chains.len(), 1] {
            let samples = (0..rounds)
                .map(|_| {
                    let begin = thread_cpu();
                    for _ in 0..per_sample {
                        std::hint::black_box(tree.find_matches_impl(&chains[next(among)], false));
                    }
                    (thread_cpu() - begin).as_secs_f64() * 1e6 / per_sample as f64
                })
                .collect();
            row += &format!(" {} |", spread(samples));
        }
    }
    {
        let mut tree = RadixTree::new();
        fill(&c, shape, h, |e| tree.apply_event(e).unwrap());
        for among in [chains.len(), 1] {
            let samples = (0..rounds)
                .map(|_| {
                    // It takes the chain for its own: the copy is made before.
                    let own: Vec<_> = (0..per_sample).map(|_| chains[next(among)].clone()).collect();
                    let begin = thread_cpu();
                    for chain in own {
                        std::hint::black_box(tree.find_matches(chain, false));
                    }
                    (thread_cpu() - begin).as_secs_f64() * 1e6 / per_sample as f64
                })
                .collect();
            row += &format!(" {} |", spread(samples));
        }
    }
    println!("{row}");
}

fn apply(blocks: usize, rounds: usize) {
    println!("\n### Apply: million blocks/s and core, median (quartiles)\n");
    println!("| event | CRTC new | again | remove | RadixTree new | again | remove | CRTC with channel, new |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let c = Corpus::new(6, blocks, 1024);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for n in [1usize, 16, 128] {
        let stored = || {
            let mut out = Vec::new();
            for chain in 0..c.chains {
                c.stored(0, chain, c.depth, n, &mut out);
            }
            out
        };
        let removed = || {
            let mut out = Vec::new();
            for chain in 0..c.chains {
                // From the chain's end, as engines evict.
                for to in (1..=c.depth).rev().step_by(n) {
                    let hashes = (to.saturating_sub(n)..to).rev().map(|i| ExternalSequenceBlockHash(c.key(chain, i)));
                    out.push(event(0, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: hashes.collect() })));
                }
            }
            out
        };
        let rate = |d: Duration| (c.chains * c.depth) as f64 / 1e6 / d.as_secs_f64();
        let mut columns: Vec<Vec<f64>> = vec![Vec::new(); 7];
        for _ in 0..(rounds / 4).max(3) {
            // A tree's lookup of its blocks lives in its worker loop: three passes
            // in one loop, told apart by what two and one take.
            let took: Vec<f64> = (1..=3)
                .map(|passes| {
                    let mut events = stored();
                    if passes > 1 {
                        events.extend(stored());
                    }
                    if passes > 2 {
                        events.extend(removed());
                    }
                    run_events(&ConcurrentRadixTreeCompressed::new(), events).as_secs_f64()
                })
                .collect();
            for (i, t) in [took[0], took[1] - took[0], took[2] - took[1]].into_iter().enumerate() {
                columns[i].push(rate(Duration::from_secs_f64(t.max(1e-9))));
            }
            let mut tree = RadixTree::new();
            for (i, events) in [stored(), stored(), removed()].into_iter().enumerate() {
                let begin = thread_cpu();
                for e in events {
                    tree.apply_event(e).unwrap();
                }
                columns[3 + i].push(rate(thread_cpu() - begin));
            }
            let pool = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 64);
            let events = stored();
            let begin = process_cpu();
            for e in events {
                pool.enqueue_event(e).unwrap();
            }
            runtime.block_on(pool.flush_and_wait()).unwrap();
            columns[6].push(rate(process_cpu() - begin));
        }
        let cells: Vec<String> = columns.into_iter().map(spread).collect();
        println!("| {n} blocks | {} |", cells.join(" | "));
    }
}

fn size(blocks: usize, holders: &[usize]) {
    println!("\n### Memory: bytes a block, allocated\n");
    println!("| index | CRTC | RadixTree |\n|---|---:|---:|");
    for &h in holders {
        let c = Corpus::new(5, blocks, 1024);
        let n = (c.chains * c.depth) as f64;
        let before = IN_USE.load(Ordering::Relaxed);
        let pool = filled_pool(&c, "whole", h);
        let crtc = (IN_USE.load(Ordering::Relaxed) - before) as f64 / n;
        drop(pool);
        let before = IN_USE.load(Ordering::Relaxed);
        let mut tree = RadixTree::new();
        fill(&c, "whole", h, |e| tree.apply_event(e).unwrap());
        let radix = (IN_USE.load(Ordering::Relaxed) - before) as f64 / n;
        println!("| {h} holders a block | {crtc:.1} | {radix:.1} |");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [find, shape, rest @ ..] = args.as_slice() {
        if find == "find" {
            let v: Vec<usize> = rest.iter().map(|s| s.parse().expect("a number")).collect();
            return find_one(shape, v[0], v[1], v[2], v[3]);
        }
    }
    let number = |i: usize, default: usize| args.get(i).map_or(default, |s| s.parse().expect("a number"));
    let (blocks, rounds) = (number(0, 1 << 20), number(1, 20));
    let holders: Vec<usize> = args
        .get(2)
        .map_or(vec![1, 10, 100], |s| s.split(',').map(|w| w.parse().expect("a number")).collect());
    find(blocks, rounds, &holders);
    apply(blocks, rounds);
    size(blocks, &holders);
}
