// libcuda.so.1 of the tests: the one function of the driver that LibTorch's autograd asks itself, whether a
// device is in use. A program that is linked with it has it loaded under that name, where LibTorch looks.
extern "C" __attribute__((visibility("default"))) int cuDevicePrimaryCtxGetState(int /*device*/,
                                                                                 unsigned* flags,
                                                                                 int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
