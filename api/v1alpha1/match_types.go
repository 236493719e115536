package v1alpha1

// Match is met by a request that meets every condition it states.
//
// +kubebuilder:validation:XValidation:rule="has(self.methods) || has(self.path) || has(self.headers) || has(self.expression)",message="must state at least one of `methods`, `path`, `headers` and `expression`: to limit every request, leave `match` out"
type Match struct {
	// methods are the methods of which the request has one, in capitals.
	// Example: `[POST, PUT]`.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Methods []Method `json:"methods,omitempty"`

	// path is compared with the request's path: without the query, with escapes
	// decoded and with empty and dot segments removed.
	// +optional
	Path *PathMatch `json:"path,omitempty"`

	// headers are conditions on headers, all of which must be met.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Headers []HeaderMatch `json:"headers,omitempty"`

	// expression is a CEL expression that must be true.
	// Example: `"request.query['dry'] != '1'"`.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Expression string `json:"expression,omitempty"`
}

// Method is an HTTP method in capitals.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Z]+(-[A-Z]+)*$')",message="must be a method in capitals, such as POST"
type Method string

// PathMatch is a condition on the path.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'RegularExpression' || self.value.startsWith('/')",fieldPath=".value",message="must start with /, such as /v1/orders"
// +kubebuilder:validation:XValidation:rule="self.type != 'Template' || self.value.matches('^[^{}]*(/[{][^{}/]+[}](/[^{}]*)?)*$')",fieldPath=".value",message="must have braces only around the name of a whole segment, such as /v1/users/{id}"
type PathMatch struct {
	// type says how `value` is compared.
	// `Exact` is the whole path. `Prefix` is whole segments from the start:
	// /v1 covers /v1 and /v1/a, not /v10. `Template` is the whole path, with
	// {name} for any one segment: /v1/users/{id}. `RegularExpression` is an RE2
	// expression that the whole path must match.
	// Default: `Prefix`.
	// +optional
	// +kubebuilder:default=Prefix
	Type PathMatchType `json:"type,omitempty"`

	// value is the path, template or expression, at most 1024 characters.
	// Example: `/v1/orders`.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value"`
}

// PathMatchType says how a path is compared.
//
// +kubebuilder:validation:Enum=Exact;Prefix;Template;RegularExpression
type PathMatchType string

// HeaderMatch is a condition on a header, met when any of its values meets it.
type HeaderMatch struct {
	// name of the header. Upper and lower case are the same.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9!#$%&*+.^_|~\\x27\\x60-]+$')",message="must be a header's name, without spaces and colon, such as X-Plan"
	Name string `json:"name"`

	// type says how `value` is compared. `Exact` is the whole value.
	// `RegularExpression` is an RE2 expression that the whole value must match.
	// Default: `Exact`.
	// +optional
	// +kubebuilder:default=Exact
	Type HeaderMatchType `json:"type,omitempty"`

	// value is the value or expression, at most 1024 characters.
	// Example: `free`.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value"`
}

// HeaderMatchType says how a header's value is compared.
//
// +kubebuilder:validation:Enum=Exact;RegularExpression
type HeaderMatchType string
