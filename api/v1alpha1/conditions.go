package v1alpha1

// Types of a RateLimitPolicy's conditions.
const (
	// ConditionAccepted says whether the policy is valid and its targets exist.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed says whether the policy's definition and the scripts
	// are in the store. It is absent while the policy is not accepted.
	ConditionProgrammed = "Programmed"
	// ConditionEnforced says whether every pod that the policy selects enforces
	// its current generation, as the pods themselves report.
	ConditionEnforced = "Enforced"
	// ConditionEvadable is there, and True, while a client can get around the
	// policy by other values of what its limits count by, if nobody checks them.
	// The policy is enforced all the same.
	ConditionEvadable = "Evadable"
	// ConditionBypassed is there, and True, while a Service leads to a pod that the
	// policy selects past the pod's sidecar. Requests that come to the pod in another
	// way are limited all the same.
	ConditionBypassed = "Bypassed"
)

// Reasons of the Accepted condition.
const (
	// ReasonAccepted: the policy is valid and its targets exist.
	ReasonAccepted = "Accepted"
	// ReasonInvalid: the message names the fields at fault.
	ReasonInvalid = "Invalid"
	// ReasonTargetNotFound: the message names the targets that do not exist.
	ReasonTargetNotFound = "TargetNotFound"
)

// Reasons of the Programmed condition.
const (
	// ReasonProgrammed: enforcers can read the current definition.
	ReasonProgrammed = "Programmed"
	// ReasonStoreUnavailable: the store did not answer. It is the reason of
	// Programmed=False and of Enforced=Unknown.
	ReasonStoreUnavailable = "StoreUnavailable"
	// ReasonStoreUnauthorized: the store refused the manager's credentials, or
	// its user lacks a permission.
	ReasonStoreUnauthorized = "StoreUnauthorized"
)

// Reasons of the Enforced condition, besides ReasonStoreUnavailable.
const (
	// ReasonEnforced: all selected pods enforce the current generation.
	ReasonEnforced = "Enforced"
	// ReasonPartial: some do; the message names pods that are behind.
	ReasonPartial = "Partial"
	// ReasonNoEnforcers: no selected pod runs an enforcer.
	ReasonNoEnforcers = "NoEnforcers"
)

// ReasonClientChosenKey is the reason of the Evadable condition: all limits have a
// key with a part that clients choose, such as a header.
const ReasonClientChosenKey = "ClientChosenKey"

// ReasonNumericTargetPort is the reason of the Bypassed condition: a Service has the
// number of the app's port as its targetPort, and not the name, which the sidecar has
// taken over.
const ReasonNumericTargetPort = "NumericTargetPort"
