package webhookcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

const (
	authorityLife = 365 * 24 * time.Hour
	leafLife      = 30 * 24 * time.Hour
	// settling is how long an authority is trusted before it signs.
	settling = time.Hour
	// skew is how far behind another machine's clock may be.
	skew = time.Hour
)

// ca is an authority: its certificate and its key.
type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(now time.Time) (ca, error) {
	return sign(nil, &x509.Certificate{
		Subject:               pkix.Name{CommonName: "tallyman webhook authority"},
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
	}, now)
}

// newLeaf is a server's certificate for names or addresses, which does not
// outlive its authority.
func newLeaf(parent ca, hosts []string, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "tallyman webhook"},
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(parent.cert.NotAfter) {
		template.NotAfter = parent.cert.NotAfter
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	leaf, err := sign(&parent, template, now)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key, Leaf: leaf.cert}, nil
}

// sign makes a key and its certificate, which signs itself if there is no parent.
func sign(parent *ca, template *x509.Certificate, now time.Time) (ca, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return ca{}, fmt.Errorf("make a key: %w", err)
	}
	template.NotBefore = now.Add(-skew)
	issuer, signer := template, key
	if parent != nil {
		issuer, signer = parent.cert, parent.key
	}
	// Without a serial number it gets a random one.
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signer)
	if err != nil {
		return ca{}, fmt.Errorf("make a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return ca{cert: cert, key: key}, err
}

// isDue says whether two thirds of a certificate's life are over.
func isDue(cert *x509.Certificate, now time.Time) bool {
	life := cert.NotAfter.Sub(cert.NotBefore)
	return now.After(cert.NotBefore.Add(life / 3 * 2))
}

// maintain returns the authorities, newest first, that there should be: without
// those that have expired, and with a new one when the newest is due.
func maintain(all []ca, now time.Time) (next []ca, changed bool, err error) {
	next = slices.DeleteFunc(slices.Clone(all), func(c ca) bool { return now.After(c.cert.NotAfter) })
	if len(next) > 0 && !isDue(next[0].cert, now) {
		return next, len(next) < len(all), nil
	}
	fresh, err := newCA(now)
	if err != nil {
		return nil, false, err
	}
	return slices.Insert(next, 0, fresh), true, nil
}

// signer is the authority that signs now: the newest that has been trusted for
// long enough or, where there is none yet, the oldest.
func signer(all []ca, now time.Time) ca {
	for _, c := range all {
		if trustedSince := c.cert.NotBefore.Add(skew); !now.Before(trustedSince.Add(settling)) {
			return c
		}
	}
	return all[len(all)-1]
}

// bundle is what the API server is to trust, in PEM.
func bundle(all []ca) []byte {
	var out bytes.Buffer
	for _, c := range all {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: c.cert.Raw}))
	}
	return out.Bytes()
}

const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY"
)

// encode writes certificates and keys in turn, in PEM.
func encode(all []ca) ([]byte, error) {
	var out bytes.Buffer
	for _, c := range all {
		key, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			return nil, fmt.Errorf("encode a key: %w", err)
		}
		out.Write(bundle([]ca{c}))
		out.Write(pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: key}))
	}
	return out.Bytes(), nil
}

// decode reads what encode has written. No text is no authority, and no error.
func decode(text []byte) (all []ca, err error) {
	for len(bytes.TrimSpace(text)) > 0 {
		var c ca
		if c, text, err = decodeOne(text); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func decodeOne(text []byte) (c ca, rest []byte, err error) {
	cert, text := pem.Decode(text)
	key, rest := pem.Decode(text)
	if cert == nil || key == nil || cert.Type != blockCertificate || key.Type != blockKey {
		return ca{}, nil, errors.New("expected certificates and keys (PEM) in turn")
	}
	if c.cert, err = x509.ParseCertificate(cert.Bytes); err != nil {
		return ca{}, nil, fmt.Errorf("parse a certificate: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	if err != nil {
		return ca{}, nil, errors.New("parse a key: it is not in PKCS 8") // nothing of a key gets into a log
	}
	var isECDSA bool
	if c.key, isECDSA = parsed.(*ecdsa.PrivateKey); !isECDSA || !c.key.PublicKey.Equal(c.cert.PublicKey) {
		return ca{}, nil, errors.New("a key is not that of its certificate")
	}
	return c, rest, nil
}
