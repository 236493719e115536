package conformance

// conformance is a policy, and what becomes of requests under it.
type conformance struct {
	name, spec string
	trace      []exchange
}

// exchange is a request, as "METHOD path", and its answer: status, the RateLimit
// header without times, and "retry" if there is a Retry-After. It is of client
// 192.0.2.1 unless the X-Forwarded-For says otherwise, whose last entry is that of a
// trusted proxy.
type exchange struct {
	send   string
	header map[string]string
	want   string
}

func key(value string) map[string]string { return map[string]string{"X-Api-Key": value} }

func forwarded(addresses string) map[string]string {
	return map[string]string{"X-Forwarded-For": addresses}
}

// conformances are those of all ways in.
var conformances = []conformance{
	{
		"each key has the limit", `limits: [{name: x, requests: 2, window: 1h, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}]}]`,
		[]exchange{
			{"GET /", key("alice"), `200 "x";r=1`},
			{"POST /other", key("alice"), `200 "x";r=0`},
			{"GET /", key("alice"), `429 "x";r=0 retry`},
			{"GET /", key("bob"), `200 "x";r=1`},
			{"GET /", nil, `200 "x";r=1`},
		},
	},
	{
		"nothing is nothing", `limits: [{name: x, requests: 0, window: 1h}]`,
		[]exchange{{"GET /", nil, `429 "x";r=0`}},
	},
	{
		"a window that the first request begins", `limits: [{name: x, requests: 1, window: 1h, algorithm: FixedWindow, anchor: FirstRequest}]`,
		[]exchange{{"GET /", nil, `200 "x";r=0`}, {"GET /", nil, `429 "x";r=0 retry`}},
	},
	{
		"a bucket has its burst", `limits: [{name: x, requests: 1, window: 1h, algorithm: TokenBucket, burst: 3}]`,
		[]exchange{
			{"GET /", nil, `200 "x";r=2`},
			{"GET /", nil, `200 "x";r=1`},
			{"GET /", nil, `200 "x";r=0`},
			{"GET /", nil, `429 "x";r=0 retry`},
		},
	},
	{
		// H1.
		"a client is what a trusted proxy saw", `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}]}]`,
		[]exchange{
			{"GET /", forwarded("198.51.100.1"), `200 "x";r=0`},
			{"GET /", forwarded("6.6.6.6, 198.51.100.1"), `429 "x";r=0 retry`},
			{"GET /", forwarded("198.51.100.1, 198.51.100.2"), `200 "x";r=0`},
			{"GET /", forwarded("2001:db8::1"), `200 "x";r=0`},
			{"GET /", forwarded("2001:db8::2"), `429 "x";r=0 retry`},
			{"GET /", forwarded("2001:db8:0:1::1"), `200 "x";r=0`},
			{"GET /", forwarded("::ffff:198.51.100.1"), `429 "x";r=0 retry`},
		},
	},
	{
		"keys have rules of their own",
		`limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, onMissingKey: Deny, key: [{header: {name: X-Api-Key}}],
		overrides: [{keys: [big], requests: 2}, {keys: [free], action: Exempt}, {keys: [bad], action: Deny}]}]`,
		[]exchange{
			{"GET /", key("small"), `200 "x";r=0`},
			{"GET /", key("small"), `429 "x";r=0 retry`},
			{"GET /", key("big"), `200 "x";r=1`},
			{"GET /", key("free"), `200 `},
			{"GET /", key("bad"), `429 `},
			{"GET /", nil, `429 `},
		},
	},
	{
		"shadows refuse nothing", `enforcement: Shadow, limits: [{name: x, requests: 0, window: 1h}]`,
		[]exchange{{"GET /", nil, `200 `}},
	},
	{
		"the policy shapes the answer", `response: {statusCode: 403, headers: None}, limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`,
		[]exchange{{"GET /", nil, `200 `}, {"GET /", nil, `403 `}},
	},
}

// httpConformances look at methods, paths and queries, which gRPC calls of one name
// have all the same.
var httpConformances = []conformance{
	{
		"spellings of a path are one", `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, match: [{methods: [POST], path: {type: Exact, value: /v1/orders}}]}]`,
		[]exchange{
			{"POST /v1/orders", nil, `200 "x";r=0`},
			{"POST /v1//orders?a=1", nil, `429 "x";r=0 retry`},
			{"POST /v1/%6frders", nil, `429 "x";r=0 retry`},
			{"POST /v1/x/%2e%2e/orders/", nil, `429 "x";r=0 retry`},
			{"GET /v1/orders", nil, `200 `},
			{"POST /v1/orders2", nil, `200 `},
			{"POST /v1%2Forders", nil, `200 `},
		},
	},
	{
		"a refusal of one limit takes nothing of the others",
		`limits: [{name: narrow, requests: 1, window: 1h, algorithm: SlidingLog, match: [{path: {value: /narrow}}]}, {name: wide, requests: 3, window: 1h, algorithm: SlidingLog}]`,
		[]exchange{
			{"GET /narrow", nil, `200 "narrow";r=0, "wide";r=2`},
			{"GET /narrow", nil, `429 "narrow";r=0, "wide";r=2 retry`},
			{"GET /", nil, `200 "wide";r=1`},
			{"GET /", nil, `200 "wide";r=0`},
			{"GET /", nil, `429 "wide";r=0 retry`},
		},
	},
	{
		"queries, cookies, hosts and expressions are seen",
		`limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, match: [{expression: "request.query['dry'] != '1'"}],
		key: [{queryParameter: {name: q}}, {cookie: {name: session}}, {header: {name: Host}}]}]`,
		[]exchange{
			{"GET /?q=1", nil, `200 "x";r=0`},
			{"GET /?q=1", nil, `429 "x";r=0 retry`},
			{"GET /?q=1&dry=1", nil, `200 `},
			{"GET /?q=2", nil, `200 "x";r=0`},
			{"GET /?q=1", map[string]string{"Cookie": "session=a"}, `200 "x";r=0`},
			{"GET /?q=1", map[string]string{"Host": "other.example"}, `200 "x";r=0`},
		},
	},
	{
		"what costs more than there ever is has no time to come back",
		`limits: [{name: x, requests: 5, window: 1h, algorithm: SlidingLog, cost: {expression: "int(request.query['n'])"}}]`,
		[]exchange{{"GET /?n=2", nil, `200 "x";r=3`}, {"GET /?n=6", nil, `429 "x";r=3`}, {"GET /?n=4", nil, `429 "x";r=3 retry`}, {"GET /?n=3", nil, `200 "x";r=0`}},
	},
	{
		"preflights are not counted", `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`,
		[]exchange{
			{"OPTIONS /", map[string]string{"Origin": "https://a.example", "Access-Control-Request-Method": "PUT"}, `200 `},
			{"OPTIONS /", nil, `200 "x";r=0`},
		},
	},
}
