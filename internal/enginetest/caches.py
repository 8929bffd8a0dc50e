"""The caches of engines: vLLM's KVCacheManager and SGLang's RadixCache, as their schedulers use them.

Each has the same few methods. A request is begun, goes on by some tokens, and ends; found says what the cache
would reuse for it; take returns the events since the last take.
"""


def vllm_modules():
    """What vLLM's modules import and what stands in for it."""

    def sha256(x):
        return hashlib.sha256(pickle.dumps(x, protocol=pickle.HIGHEST_PROTOCOL)).digest()

    arithmetic = {
        "cdiv": lambda a, b: -(a // -b),
        "round_up": lambda a, b: -(a // -b) * b,
        "round_down": lambda a, b: a // b * b,
        "sha256": sha256,
        "length_from_prompt_token_ids_or_embeds": lambda ids, _: len(ids),
    }
    return {
        "vllm.utils": arithmetic,
        "vllm.utils.math_utils": arithmetic,
        "vllm.platforms": {"current_platform": types.SimpleNamespace(register_custom_kv_cache_specs=lambda _: None)},
        "vllm.v1.utils": {"ConstantList": list_view, "tensor_data": None},
        "vllm.v1.structured_output.request": {"StructuredOutputRequest": types.SimpleNamespace(from_sampling_params=lambda _: None)},
    }


class list_view:
    """A view of a list that is appended to elsewhere."""

    def __init__(self, of):
        self.of = of

    def __getitem__(self, at):
        return self.of[at]

    def __len__(self):
        return len(self.of)


class VLLM:
    """vLLM's KVCacheManager, with full attention and, where they are set, a group with a sliding window and one with states."""

    def __init__(self, o):
        self.events = load("vllm", o.module, vllm_modules())
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
        self.spec = importlib.import_module("vllm.v1.kv_cache_interface")
        self.requests = importlib.import_module("vllm.v1.request")
        self.request_more = {"eos_token_id": None} if "eos_token_id" in inspect.signature(self.requests.Request.__init__).parameters else {}
        sha256 = vllm_modules()["vllm.utils"]["sha256"]
        utils.init_none_hash(sha256)
        self.external = utils.maybe_convert_block_hash
        self.hasher = utils.get_request_block_hasher(o.block_size, sha256)
        self.block_size, self.window, self.index_block = o.block_size, o.window, o.index_block
        groups = [self.group(self.spec.FullAttentionSpec)]
        if o.window:
            groups.append(self.group(self.spec.SlidingWindowSpec, sliding_window=o.window))
        self.states = o.states
        if o.states:
            states = self.spec.MambaSpec(block_size=o.block_size, shapes=(), dtypes=(), mamba_cache_mode="align")
            groups.append(self.spec.KVCacheGroupSpec(["layer"], states))
        more = {} if o.retention < 0 else {"prefix_cache_retention_interval": o.retention}
        config = self.spec.KVCacheConfig(num_blocks=o.blocks, kv_cache_tensors=[], kv_cache_groups=groups, **more)
        kw = dict(kv_cache_config=config, max_model_len=1 << 20, enable_caching=True, enable_kv_cache_events=True)
        params = inspect.signature(manager.KVCacheManager.__init__).parameters
        for name in ("hash_block_size", "scheduler_block_size"):
            if name in params:
                kw[name] = o.block_size
        if "max_in_flight_tokens" in params:
            kw["max_in_flight_tokens"] = 4096
        elif "max_num_batched_tokens" in params:
            kw["max_num_batched_tokens"] = 4096
        self.manager = manager.KVCacheManager(**kw)
        self.pool = self.manager.block_pool
        self.adapters = {}
        self.reports = set()  # events that say what a request has found
        if hasattr(self.pool, "emit_cached_block_events"):
            emit = self.pool.emit_cached_block_events

            def emit_noted(*a, **kw):
                n = len(self.pool.kv_event_queue)
                emit(*a, **kw)
                self.reports.update(map(id, self.pool.kv_event_queue[n:]))

            self.pool.emit_cached_block_events = emit_noted
        self.copies = Copies(self.needs())

    def group(self, kind, **kw):
        fields = {f.name for f in dataclasses.fields(kind)}
        more = {"use_mla": False} if "use_mla" in fields else {}
        spec = kind(block_size=self.block_size, num_kv_heads=1, head_size=64, dtype=None, **more, **kw)
        return self.spec.KVCacheGroupSpec(["layer"], spec)

    def request(self, p):
        lora = None
        if p.lora:
            n = self.adapters.setdefault(p.lora, len(self.adapters) + 1)
            lora = types.SimpleNamespace(name=p.lora, adapter_id=n, lora_name=p.lora, lora_int_id=n, lora_path="/adapters/" + p.lora, path="/adapters/" + p.lora)
        sampling = types.SimpleNamespace(
            max_tokens=64, extra_args={"kv_cache_report_mode": "full"} if p.report else None, skip_reading_prefix_cache=None, structured_outputs=None, prompt_logprobs=None
        )
        kw = dict(
            request_id=str(p.number), prompt_token_ids=list(p.tokens), sampling_params=sampling, pooling_params=None, lora_request=lora,
            cache_salt=p.salt or None, block_hasher=self.hasher,
        )
        return self.requests.Request(**kw, **self.request_more)

    def longest(self, r, limit):
        """The tokens that a request may reuse, of the first limit."""
        return self.manager.coordinator.find_longest_cache_hit(r.block_hashes, limit)[1]

    def needs(self):
        """How many blocks before its end a hit needs of each group; None is all."""
        return [None] + [-(-(self.window - 1) // self.block_size)] * bool(self.window) + [1] * bool(self.states)

    def found(self, r):
        first = 0
        while first < len(r.block_hashes) and self.pool.get_cached_block(r.block_hashes[first], [0]):
            first += 1
        held = self.longest(r, r.num_tokens)
        whole = held // self.index_block * self.index_block
        while self.longest(r, whole) != whole:
            whole -= self.index_block
        doubted = [i * self.block_size for i in range(whole // self.block_size) if self.copies.doubts and self.copies.doubted(self.external(r.block_hashes[i]), i, whole // self.block_size)]
        return dict(held=held, whole=whole, first_group=first * self.block_size, doubted=doubted)

    def step(self):
        """Each chunk is a step of its own."""
        if hasattr(self.manager, "new_step_starts"):
            self.manager.new_step_starts()

    def chunk(self, r, start, n):
        """How many of n tokens are computed from start on: with states, a chunk ends where one can be kept."""
        n, size = min(n, r.num_tokens - start), self.block_size
        prefill = max(r.num_prompt_tokens, r.num_tokens - 1)
        if not self.states or start >= prefill:
            return n
        end = start + n
        if end < prefill:
            end = end // size * size
        stops = [(r.num_tokens - 1) // size * size]
        junction = getattr(r, "shared_prefix_boundary", 0)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        return max(0, min([s for s in stops if start < s < end], default=end) - start)

    def begin(self, r, n):
        self.step()
        blocks, hit, *more = self.manager.get_computed_blocks(r)
        if more:
            r.shared_prefix_boundary = more[0]
        n = self.chunk(r, hit, n)
        if not n:
            return False
        if self.manager.allocate_slots(r, n, num_new_computed_tokens=hit, new_computed_blocks=blocks) is None:
            return False
        r.num_computed_tokens = hit + n
        r.status = self.requests.RequestStatus.RUNNING
        return True

    def goes_on(self, r, n):
        """Compute up to n tokens of the prompt, or say that none is left."""
        self.step()
        n = self.chunk(r, r.num_computed_tokens, n)
        if not n:
            return True
        if self.manager.allocate_slots(r, n) is None:
            return False
        r.num_computed_tokens += n
        return True

    def left(self, r):
        return r.num_tokens - r.num_computed_tokens

    def say(self, r, token):
        r.append_output_token_ids(token)

    def tokens(self, r):
        return list(r._all_token_ids)

    def end(self, r):
        self.manager.free(r)

    def preempt(self, r):
        self.manager.free(r)
        r.status, r.num_computed_tokens = self.requests.RequestStatus.PREEMPTED, 0

    def lose(self, rng):
        """Blocks that no request uses are evicted in the middle of their chains, as when a connector finds them broken.

        A block that is in use stays: what its request computes behind it would be stored under a parent that is gone.
        """
        if hasattr(self.manager, "evict_blocks"):
            some = [rng.randrange(1, self.pool.num_gpu_blocks) for _ in range(rng.randrange(1, 12))]
            self.manager.evict_blocks({i for i in some if self.pool.blocks[i].ref_cnt == 0})

    def reset(self):
        self.manager.reset_prefix_cache()

    def take(self):
        events = self.manager.take_events()
        for e in events:
            self.copies.hear(e, id(e) in self.reports)
        self.reports.clear()
        return events


class Copies:
    """The copies of blocks, and which of them a reader of the events cannot tell from reports of what a request has found.

    A reader can tell an event that begins at the root for copies where a block that a hit needs is gone for certain: it
    was taken back as often as it was told.
    """

    def __init__(self, needs):
        self.needs = needs
        self.forget()

    def forget(self):
        self.true, self.most, self.doubts = {}, {}, set()

    def hear(self, e, report):
        kind, group = type(e).__name__, getattr(e, "group_idx", None) or 0
        if kind == "AllBlocksCleared":
            return self.forget()
        blocks = [(h, group) for h in e.block_hashes]
        if kind == "BlockRemoved":
            for b in blocks:
                self.true[b] -= 1
                self.most[b] -= 1
                if not self.true[b]:
                    self.doubts.discard(b)
            return
        needed = blocks[-self.needs[group] :] if self.needs[group] else blocks
        if e.parent_block_hash is None and not report and all(self.most.get(b) for b in needed):
            self.doubts.update(blocks)
        for b in blocks:
            self.most[b] = self.most.get(b, 0) + 1
            self.true[b] = self.true.get(b, 0) + (not report)

    def doubted(self, hash, place, end):
        """Whether copies of a block are doubtful in a group of which a hit that ends behind so many blocks needs it."""
        return any((hash, g) in self.doubts for g, n in enumerate(self.needs) if n is None or place >= end - n)


class Slots:
    """Stands in for a tensor of slots: the radix cache slices, copies and joins them."""

    def __init__(self, of):
        self.of = of

    def __len__(self):
        return len(self.of)

    def __getitem__(self, at):
        return Slots(self.of[at])

    def clone(self):
        return Slots(self.of)

    def to(self, *a, **k):
        return self


class SGLang:
    """SGLang's RadixCache over a pool of slots for tokens."""

    def __init__(self, o):
        def pages(tokens, prior, page_size=None):
            """What SGLang does in C++: a digest a page, each over the one before and the page's tokens."""
            tokens, out = list(tokens), []
            for at in range(0, len(tokens), page_size or max(len(tokens), 1)):
                page = tokens[at : at + page_size] if page_size else tokens
                prior = hashlib.sha256((prior or b"") + array.array("I", page).tobytes()).digest()
                out.append(prior.hex())
            return out if page_size else out[-1]

        clock = itertools.count()
        more = {
            "torch": {
                "cat": lambda parts: Slots([s for p in parts for s in p.of]),
                "empty": lambda *a, **k: Slots([]),
            },
            "sglang.srt.mem_cache.cpp_utils.native_hash": {"get_native_hash": pages},
            # Ages are compared: with a count no two are the same.
            "sglang.srt.mem_cache.radix_cache": {"time": types.SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter)},
        }
        self.events = load("sglang", o.module, more)
        self.radix = importlib.import_module("sglang.srt.mem_cache.radix_cache")
        self.base = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
        params = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
        self.names = None
        kw = {}
        if "kv_event_lora_names" in {f.name for f in dataclasses.fields(params.CacheInitParams)}:
            self.names = kw["kv_event_lora_names"] = importlib.import_module("sglang.srt.mem_cache.events").KvEventLoraNames()
        self.page, self.index_block = o.block_size, o.index_block
        self.room = o.blocks * o.block_size
        self.private = 0  # slots that requests have and the tree has not
        self.cache = self.radix.RadixCache(
            params.CacheInitParams(
                disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=self, page_size=o.block_size, enable_kv_cache_events=True, **kw
            )
        )

    # What the tree asks of its allocator.
    device = "cpu"

    def free(self, slots):
        pass

    def free_segment(self, slots, start_pos=0):
        pass

    def key(self, r, n):
        kw = {}
        if self.names:
            kw["cache_salt"] = r.salt
        return self.radix.RadixKey(array.array("q", r.all[:n]), r.extra_key, **kw)

    def request(self, p):
        r = types.SimpleNamespace(all=list(p.tokens), prompt=len(p.tokens), salt=p.salt or None, extra_key=None, lora_id=None, done=0, shared=0, node=None)
        if p.lora:
            r.lora_id = r.extra_key = hashlib.md5(p.lora.encode()).hexdigest()
            self.names.register(r, p.lora)
        return r

    def match(self, r, n):
        m = self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key(r, n)))
        length = m.device_prefix_len if hasattr(m, "device_prefix_len") else len(m.device_indices)
        return length, m.last_device_node

    def found(self, r):
        held = self.match(r, len(r.all))[0]
        return dict(held=held, whole=held // self.index_block * self.index_block, first_group=held, doubted=[])

    def begin(self, r, n):
        r.shared, r.node = self.match(r, len(r.all) - 1)
        self.cache.inc_lock_ref(r.node)
        r.done = r.shared
        if not self.goes_on(r, n):
            self.cache.dec_lock_ref(r.node)
            return False
        return True

    def goes_on(self, r, n):
        n = min(n, len(r.all) - r.done)
        over = self.cache.evictable_size() + self.cache.protected_size() + self.private + n - self.room
        if over > 0:
            if over > self.cache.evictable_size():
                return False
            self.cache.evict(self.base.EvictParams(num_tokens=over))
        r.done += n
        self.private += n
        if r.done <= r.prompt:
            self.checkpoint(r)
        return True

    def checkpoint(self, r):
        """Give the tree what is computed of a request in whole pages: as after each chunk of a prompt, and of what is said at the end."""
        n = r.done // self.page * self.page
        if n <= r.shared:
            return
        key = self.key(r, n)
        self.cache.insert(self.base.InsertParams(key=key, value=Slots(list(range(n)))))
        self.private -= n - r.shared
        r.shared = n
        node = self.match(r, n)[1]
        self.cache.dec_lock_ref(r.node)
        self.cache.inc_lock_ref(node)
        r.node = node

    def left(self, r):
        return len(r.all) - r.done

    def say(self, r, token):
        r.all.append(token)

    def tokens(self, r):
        return list(r.all)

    def end(self, r):
        self.checkpoint(r)
        self.release(r)

    def release(self, r):
        self.private -= r.done - r.shared
        self.cache.dec_lock_ref(r.node)

    def preempt(self, r):
        """What was said becomes a part of the prompt."""
        self.release(r)
        r.prompt, r.done, r.shared = len(r.all), 0, 0

    def lose(self, rng):
        """The scheduler makes room for more than one request."""
        self.cache.evict(self.base.EvictParams(num_tokens=rng.randrange(1, 20 * self.page)))

    def reset(self):
        self.cache.reset()

    def take(self):
        return self.cache.take_events() if hasattr(self.cache, "take_events") else self.cache.kv_events.take()
