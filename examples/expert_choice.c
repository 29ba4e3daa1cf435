/* Expert choice (Zhou et al. 2022), forward and backward, without a library: every line does one thing, slowly.
 *
 *     cc -O2 examples/expert_choice.c -lm -o expert_choice && ./expert_choice
 *
 * n tokens of width d; e experts of hidden width h, each takes k tokens. (4) is a line of docs/layer.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  int n, d, h, e, k;
} sizes;

typedef struct { /* what forward leaves for backward; slot s = i k + r is the r-th token of expert i */
  float *S;      /* [n,e] affinities */
  int *token;    /* [e,k] */
  float *A, *Y;  /* [e,k,h] before the GELU, [e,k,d] what the experts made */
} kept;

static float gelu(float a) { return 0.5f * a * (1 + erff(a * 0.70710678f)); }
static float gelu_slope(float a) { return 0.5f * (1 + erff(a * 0.70710678f)) + a * 0.39894228f * expf(-a * a / 2); }

/* (2) softmax over experts, in place. */
static void softmax(int e, float *z) {
  float max = z[0], sum = 0;
  for (int i = 1; i < e; i++) max = fmaxf(max, z[i]);
  for (int i = 0; i < e; i++) sum += z[i] = expf(z[i] - max);
  for (int i = 0; i < e; i++) z[i] /= sum;
}

/* (3) the k tokens of largest S[t,i], the best first; of equal ones the lower. */
static void choose(sizes m, const float *S, int i, int *token) {
  for (int r = 0; r < m.k; r++) {
    token[r] = -1;
    for (int t = 0; t < m.n; t++) {
      int gone = 0;
      for (int q = 0; q < r; q++) gone |= token[q] == t;
      if (!gone && (token[r] < 0 || S[t * m.e + i] > S[token[r] * m.e + i])) token[r] = t;
    }
  }
}

/* out [n,d] = MoE(x [n,d]), with Wg [d,e], W1 and W2 [e,d,h]. */
void forward(sizes m, const float *x, const float *Wg, const float *W1, const float *W2, kept *c, float *out) {
  for (int t = 0; t < m.n; t++) {
    for (int i = 0; i < m.e; i++) {
      c->S[t * m.e + i] = 0; /* (1) logits */
      for (int j = 0; j < m.d; j++) c->S[t * m.e + i] += x[t * m.d + j] * Wg[j * m.e + i];
    }
    softmax(m.e, c->S + t * m.e);
    for (int j = 0; j < m.d; j++) out[t * m.d + j] = 0;
  }
  for (int i = 0; i < m.e; i++) choose(m, c->S, i, c->token + i * m.k);
  for (int s = 0; s < m.e * m.k; s++) {
    int i = s / m.k, t = c->token[s];
    const float *u = x + t * m.d, *w1 = W1 + i * m.d * m.h, *w2 = W2 + i * m.d * m.h; /* (5) dispatch: u */
    float *A = c->A + s * m.h, *Y = c->Y + s * m.d;
    for (int a = 0; a < m.h; a++) {
      A[a] = 0; /* (6) */
      for (int j = 0; j < m.d; j++) A[a] += u[j] * w1[j * m.h + a];
    }
    for (int j = 0; j < m.d; j++) {
      Y[j] = 0; /* (7), (8) */
      for (int a = 0; a < m.h; a++) Y[j] += gelu(A[a]) * w2[j * m.h + a];
      out[t * m.d + j] += c->S[t * m.e + i] * Y[j]; /* (4), (9): weighted by the gate, the raw affinity */
    }
  }
}

/* Adds the gradients of a loss whose gradient by out is dout: dx, dWg, dW1, dW2. */
void backward(sizes m, const float *x, const float *Wg, const float *W1, const float *W2, const kept *c,
              const float *dout, float *dx, float *dWg, float *dW1, float *dW2) {
  float *dS = calloc((size_t)m.n * (size_t)m.e, sizeof *dS); /* (4a) 0 where the expert did not take the token */
  for (int s = 0; s < m.e * m.k; s++) {
    int i = s / m.k, t = c->token[s];
    const float *A = c->A + s * m.h, *Y = c->Y + s * m.d, gate = c->S[t * m.e + i];
    for (int j = 0; j < m.d; j++) dS[t * m.e + i] += dout[t * m.d + j] * Y[j]; /* (9a) */
    for (int a = 0; a < m.h; a++) {
      float dH = 0;
      for (int j = 0; j < m.d; j++) {
        int w = (i * m.d + j) * m.h + a;
        float dY = gate * dout[t * m.d + j]; /* (9b) */
        dW2[w] += dY * gelu(A[a]);           /* (8a) */
        dH += dY * W2[w];                    /* (8b) */
      }
      float dA = dH * gelu_slope(A[a]); /* (7a) */
      for (int j = 0; j < m.d; j++) {
        int w = (i * m.d + j) * m.h + a;
        dW1[w] += x[t * m.d + j] * dA; /* (6a) */
        dx[t * m.d + j] += dA * W1[w]; /* (6b), (5a) */
      }
    }
  }
  for (int t = 0; t < m.n; t++) {
    const float *S = c->S + t * m.e, *ds = dS + t * m.e;
    float mean = 0;
    for (int i = 0; i < m.e; i++) mean += S[i] * ds[i];
    for (int i = 0; i < m.e; i++) {
      float dZ = S[i] * (ds[i] - mean); /* (2a) */
      for (int j = 0; j < m.d; j++) {
        dWg[j * m.e + i] += x[t * m.d + j] * dZ; /* (1a) */
        dx[t * m.d + j] += dZ * Wg[j * m.e + i]; /* (1b) */
      }
    }
  }
  free(dS);
}

/* Eight tokens, four experts, c = 1: prints the tokens of each expert. */
int main(void) {
  enum { N = 8, D = 3, H = 5, E = 4, K = 2 };
  float x[N * D], Wg[D * E], W1[E * D * H], W2[E * D * H], out[N * D], S[N * E], A[E * K * H], Y[E * K * D];
  int token[E * K];
  for (int j = 0; j < N * D; j++) x[j] = sinf(7.f * (float)j);
  for (int j = 0; j < D * E; j++) Wg[j] = cosf(5.f * (float)j);
  for (int j = 0; j < E * D * H; j++) W1[j] = sinf(3.f * (float)j), W2[j] = cosf(2.f * (float)j);
  forward((sizes){N, D, H, E, K}, x, Wg, W1, W2, &(kept){S, token, A, Y}, out);
  for (int s = 0; s < E * K; s++) printf("expert %d: token %d, gate %.3f\n", s / K, token[s], S[token[s] * E + s / K]);
  return 0;
}
